//! The numbers in `firmware-notes/*.md` against the code's: `<!-- check: name = value -->`.

use super::{Outcome, Tally};
use std::path::Path;

pub(super) fn run(root: &Path) -> Outcome {
    let _ = (root, Tally::ONE_PASSED);
    Outcome::Skip("the notes state no number yet".into())
}
