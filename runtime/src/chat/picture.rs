//! A picture of a conversation.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::image::Rgb;

/// A picture, with the hash of its pixels: two of the same content are the same, wherever they came from. A copy is
/// cheap.
#[derive(Clone)]
pub struct Picture(Arc<Inner>);

struct Inner {
    rgb: Rgb,
    hash: [u8; 32],
}

impl Picture {
    /// Takes the pixels.
    #[must_use]
    pub fn new(rgb: Rgb) -> Picture {
        let mut hash = Sha256::new();
        for side in [rgb.width, rgb.height] {
            hash.update((side as u64).to_le_bytes());
        }
        hash.update(&rgb.data);
        Picture(Arc::new(Inner { hash: hash.finalize().into(), rgb }))
    }

    /// Its pixels.
    #[must_use]
    pub fn rgb(&self) -> &Rgb {
        &self.0.rgb
    }

    /// SHA-256 of its sides (each 8 bytes, little-endian) and pixels.
    #[must_use]
    pub fn hash(&self) -> &[u8; 32] {
        &self.0.hash
    }
}

impl From<Rgb> for Picture {
    fn from(rgb: Rgb) -> Picture {
        Picture::new(rgb)
    }
}

impl PartialEq for Picture {
    fn eq(&self, other: &Picture) -> bool {
        self.0.hash == other.0.hash
    }
}

impl Eq for Picture {}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0.hash;
        let Rgb { width, height, .. } = self.0.rgb;
        write!(f, "Picture({width} x {height}, {a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_its_content() {
        let of = |width, height, last| {
            let mut data = vec![7; width * height * 3];
            data[width * height * 3 - 1] = last;
            Picture::new(Rgb { width, height, data })
        };
        assert_eq!(of(4, 2, 1), of(4, 2, 1));
        assert_ne!(of(4, 2, 1), of(4, 2, 2));
        assert_ne!(of(4, 2, 1), of(2, 4, 1));
        assert!(format!("{:?}", of(4, 2, 1)).starts_with("Picture(4 x 2, "));
    }
}
