//! The one thing of EXIF that matters to a reader of pictures: which way is up. EXIF 2.32, TIFF 6.0.

use super::Rgb;

/// The eight values of the tag `Orientation`: where the stored picture's first row and first column belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Orientation {
    /// 1: stored upright.
    #[default]
    Upright = 1,
    /// 2: left and right swapped.
    FlippedLeftRight = 2,
    /// 3: upside down.
    HalfTurn = 3,
    /// 4: top and bottom swapped.
    FlippedTopBottom = 4,
    /// 5: rows are columns.
    Transposed = 5,
    /// 6: has to be turned by a quarter clockwise.
    NeedsClockwise = 6,
    /// 7: transposed along the other diagonal.
    Transversed = 7,
    /// 8: has to be turned by a quarter anticlockwise.
    NeedsAnticlockwise = 8,
}

const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;
const LONG: u16 = 4;

impl Orientation {
    /// The orientation that a TIFF structure (what follows `Exif\0\0` in a JPEG, or a PNG's `eXIf` chunk) states;
    /// upright where it states none, or states nonsense.
    #[must_use]
    pub fn of_tiff(tiff: &[u8]) -> Self {
        tag(tiff).and_then(Self::from_tag).unwrap_or_default()
    }

    fn from_tag(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Upright,
            2 => Self::FlippedLeftRight,
            3 => Self::HalfTurn,
            4 => Self::FlippedTopBottom,
            5 => Self::Transposed,
            6 => Self::NeedsClockwise,
            7 => Self::Transversed,
            8 => Self::NeedsAnticlockwise,
            _ => return None,
        })
    }

    /// Turns a stored picture upright.
    #[must_use]
    pub fn apply(self, stored: Rgb) -> Rgb {
        if self == Self::Upright {
            return stored;
        }
        let (w, h) = (stored.width, stored.height);
        let swapped = self as u8 >= Self::Transposed as u8;
        let (width, height) = if swapped { (h, w) } else { (w, h) };
        let mut data = Vec::with_capacity(stored.data.len());
        for y in 0..height {
            for x in 0..width {
                let (sx, sy) = match self {
                    Self::Upright => (x, y),
                    Self::FlippedLeftRight => (w - 1 - x, y),
                    Self::HalfTurn => (w - 1 - x, h - 1 - y),
                    Self::FlippedTopBottom => (x, h - 1 - y),
                    Self::Transposed => (y, x),
                    Self::NeedsClockwise => (y, h - 1 - x),
                    Self::Transversed => (w - 1 - y, h - 1 - x),
                    Self::NeedsAnticlockwise => (w - 1 - y, x),
                };
                let at = 3 * (sy * w + sx);
                data.extend_from_slice(&stored.data[at..at + 3]);
            }
        }
        Rgb { width, height, data }
    }
}

/// The value of the orientation tag of the first directory.
fn tag(tiff: &[u8]) -> Option<u32> {
    let little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let u32_at = |at: usize| {
        let bytes: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = u32_at(4)? as usize;
    let entries = usize::from(u16_at(directory)?);
    for entry in 0..entries {
        let at = directory.checked_add(2 + 12 * entry)?;
        if u16_at(at)? == ORIENTATION {
            // A value that fits stands in the entry itself, left-justified.
            return match u16_at(at + 2)? {
                SHORT => u16_at(at + 8).map(u32::from),
                LONG => u32_at(at + 8),
                _ => None,
            };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiff(little: bool, kind: u16, value: u16) -> Vec<u8> {
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        let put16 = |bytes: &mut Vec<u8>, v: u16| {
            bytes.extend(if little { v.to_le_bytes() } else { v.to_be_bytes() });
        };
        let put32 = |bytes: &mut Vec<u8>, v: u32| {
            bytes.extend(if little { v.to_le_bytes() } else { v.to_be_bytes() });
        };
        put32(&mut bytes, 8);
        put16(&mut bytes, 2);
        for (tag, kind, value) in [(0x010f, 2, 0), (ORIENTATION, kind, value)] {
            put16(&mut bytes, tag);
            put16(&mut bytes, kind);
            put32(&mut bytes, 1);
            if kind == LONG {
                put32(&mut bytes, u32::from(value));
            } else {
                put16(&mut bytes, value);
                put16(&mut bytes, 0);
            }
        }
        bytes
    }

    #[test]
    fn both_byte_orders_and_both_integer_types_are_read() {
        for little in [true, false] {
            for kind in [SHORT, LONG] {
                for value in 1..=8 {
                    assert_eq!(Orientation::of_tiff(&tiff(little, kind, value)) as u16, value);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_upright() {
        let whole = tiff(true, SHORT, 6);
        for len in 0..whole.len() - 2 {
            assert_eq!(Orientation::of_tiff(&whole[..len]), Orientation::Upright, "{len} bytes");
        }
        for value in [0, 9, 0xffff] {
            assert_eq!(Orientation::of_tiff(&tiff(true, SHORT, value)), Orientation::Upright);
        }
        let mut far = whole;
        far[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Orientation::of_tiff(&far), Orientation::Upright);
    }

    #[test]
    fn every_turn_undoes_itself_or_its_opposite() {
        let stored = Rgb { width: 3, height: 2, data: (0..18).collect() };
        for (there, back) in [(2, 2), (3, 3), (4, 4), (5, 5), (6, 8), (7, 7), (8, 6)] {
            let [there, back] = [there, back].map(|v| Orientation::from_tag(v).unwrap());
            let turned = there.apply(stored.clone());
            assert_ne!(turned, stored, "{there:?}");
            assert_eq!(back.apply(turned), stored, "{there:?}");
        }
    }
}
