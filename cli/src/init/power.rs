//! The power button, as the kernel's input devices tell of it.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// `struct input_event` of a 64-bit kernel: two words of time, type, code, value.
const EVENT: usize = 24;
const KEY: u16 = 1;
const POWER: u16 = 116;
const PRESSED: i32 = 1;

/// The devices that have such a button.
#[derive(Debug, Default)]
pub(super) struct Buttons {
    files: Vec<File>,
}

impl Buttons {
    pub(super) fn open() -> Buttons {
        let entries = fs::read_dir("/sys/class/input").into_iter().flatten().flatten();
        let events =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with("event"));
        let with_button = events.filter(|name| {
            let keys = fs::read_to_string(format!("/sys/class/input/{name}/device/capabilities/key"));
            keys.is_ok_and(|keys| has_bit(&keys, POWER))
        });
        let open = |name: String| {
            OpenOptions::new()
                .read(true)
                .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
                .open(format!("/dev/input/{name}"))
        };
        Buttons { files: with_button.filter_map(|name| open(name).ok()).collect() }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    /// Whether one was pressed since the last question. A device that is gone is not asked again.
    pub(super) fn pressed(&mut self) -> bool {
        let mut pressed = false;
        self.files.retain(|mut file| {
            let mut bytes = [0; EVENT * 16];
            loop {
                match file.read(&mut bytes) {
                    Ok(0) => return false,
                    Ok(count) => pressed |= is_press(bytes.get(..count).unwrap_or_default()),
                    Err(e) => return e.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        });
        pressed
    }
}

/// Whether events hold a press of the power button.
fn is_press(events: &[u8]) -> bool {
    events.chunks_exact(EVENT).any(|event| {
        let short = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
        let value = i32::from_ne_bytes([event[20], event[21], event[22], event[23]]);
        (short(16), short(18), value) == (KEY, POWER, PRESSED)
    })
}

/// A bit of sysfs's bitmaps: words of 64 bits in hexadecimal, the highest first.
fn has_bit(text: &str, bit: u16) -> bool {
    let word = text.split_whitespace().rev().nth(usize::from(bit / 64));
    word.and_then(|word| u64::from_str_radix(word, 16).ok()).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_press_is_told_from_a_release_and_from_other_keys() {
        let event = |kind: u16, code: u16, value: i32| {
            [&[0; 16][..], &kind.to_ne_bytes(), &code.to_ne_bytes(), &value.to_ne_bytes()].concat()
        };
        assert!(is_press(&[event(0, 0, 0), event(1, 116, 1)].concat()));
        assert!(!is_press(&[event(1, 116, 0), event(1, 115, 1), event(0, 116, 1)].concat()));
        assert!(!is_press(&event(1, 116, 1)[..23]));
    }

    /// `/sys/class/input/input0/capabilities/key` of an ACPI power button, and of a keyboard without one.
    #[test]
    fn a_button_is_found_by_its_key() {
        assert!(has_bit("10000000000000 0\n", POWER));
        assert!(!has_bit("402000000 3803078f800d001 feffffdfffefffff fffffffffffffffe", 116 + 64 * 4));
        assert!(!has_bit("", POWER) && !has_bit("zz 0", POWER));
    }
}
