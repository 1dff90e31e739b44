//! The cases, in order.

use super::{Case, conversation, kiosk, looks, pictures, trouble};

pub(super) const ALL: [(&str, Case); 25] = [
    ("an answer in pieces of any size", conversation::pieces),
    ("all three ends of lines", conversation::line_ends),
    ("Markdown becomes nodes, markup stays text", conversation::markdown),
    ("reasoning is folded", conversation::reasoning),
    ("statistics", conversation::statistics),
    ("read out in sentences", conversation::read_out),
    ("Escape stops, and again", conversation::stop_and_retry),
    ("kept over a reload", conversation::reload),
    ("an edited question", conversation::edit),
    ("a new conversation, and back", conversation::anew),
    ("settings go along", conversation::settings),
    ("the keyboard alone", conversation::keyboard),
    ("a photograph upright and small", pictures::photograph),
    ("pasted, dropped, removed", pictures::paste_and_drop),
    ("what is no picture", pictures::no_picture),
    ("the camera", pictures::camera),
    ("more pictures than can be kept", pictures::too_many_to_keep),
    ("a busy server is asked again", trouble::busy),
    ("refused, cut, broken", trouble::broken),
    ("a server that goes and comes back", trouble::gone),
    ("a server that is not well", trouble::unwell),
    ("a key", trouble::key),
    ("kiosk: resets", kiosk::resets),
    ("kiosk: nothing to set", kiosk::closed),
    ("looks, contrast and names", looks::all),
];
