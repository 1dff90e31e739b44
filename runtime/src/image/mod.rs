//! Pictures: JPEG and PNG files to upright 8-bit RGB.
//!
//! What comes out is what Pillow's `ImageOps.exif_transpose(image).convert("RGB")` gives, which is what the reference
//! processor sees: the EXIF orientation is applied, an alpha channel is dropped (the colour under it shows), grey is
//! repeated three times, a palette is looked up, CMYK is multiplied out. PNG is exact. JPEG decoders may differ in the
//! inverse cosine transform and in chroma interpolation, since the standard leaves both a tolerance: see `jpeg`.
//!
//! Sizes are checked against [`MAX_PIXELS`] before anything of the picture's size is allocated.

mod exif;
mod jpeg;
mod png;

pub use exif::Orientation;

/// The largest picture that is decoded, in pixels: 100 megapixels, 300 MB of RGB. The vision tower sees about one.
pub const MAX_PIXELS: u64 = 100_000_000;

/// An upright picture: rows from the top, `r g b` bytes, nothing between rows.
#[derive(Clone, PartialEq, Eq)]
pub struct Rgb {
    /// Pixels a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `3 * width * height` bytes.
    pub data: Vec<u8>,
}

impl std::fmt::Debug for Rgb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rgb({} x {})", self.width, self.height)
    }
}

/// Why a file did not become a picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// No bytes.
    #[error("the file is empty")]
    Empty,
    /// A picture format that is known, but not decoded here.
    #[error("this is a {0} file: only JPEG and PNG are read, convert it first")]
    Format(&'static str),
    /// Nothing that is known.
    #[error("this is not a picture (it starts with {0}): JPEG and PNG are read")]
    NotAPicture(String),
    /// The header announces more than is sensible.
    #[error("the picture is {width} x {height} pixels, more than {MAX_PIXELS} in all: scale it down first")]
    TooLarge {
        /// As the header says.
        width: u64,
        /// As the header says.
        height: u64,
    },
    /// The header announces a picture without pixels.
    #[error("the picture is {width} x {height} pixels: there is nothing to see")]
    NoPixels {
        /// As the header says.
        width: u64,
        /// As the header says.
        height: u64,
    },
    /// The file ends before the picture does.
    #[error("the {0} file is cut short: copy or download it again")]
    Truncated(&'static str),
    /// A variant of JPEG that hardly anybody writes.
    #[error("this JPEG is {0}, which is not read: save it as an ordinary (baseline or progressive) one")]
    JpegVariant(String),
    /// The decoder gave up.
    #[error("the {format} file is damaged: {what}")]
    Damaged {
        /// JPEG or PNG.
        format: &'static str,
        /// The decoder's words.
        what: String,
    },
}

/// Decodes a whole JPEG or PNG file.
///
/// # Errors
/// [`ImageError`], for anything that is not a whole, sensibly sized JPEG or PNG.
pub fn decode(bytes: &[u8]) -> Result<Rgb, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if bytes.starts_with(&[0xff, 0xd8]) {
        jpeg::decode(bytes)
    } else if bytes.starts_with(png::SIGNATURE) {
        png::decode(bytes)
    } else {
        Err(unknown(bytes))
    }
}

/// Bytes at the start, bytes from offset 4 or 8 where they matter, and the format's name.
fn unknown(bytes: &[u8]) -> ImageError {
    let at = |offset: usize, what: &[u8]| bytes.get(offset..offset + what.len()) == Some(what);
    let name = if at(0, b"RIFF") && at(8, b"WEBP") {
        "WebP"
    } else if at(0, b"GIF8") {
        "GIF"
    } else if at(4, b"ftyp") {
        match bytes.get(8..12) {
            Some(b"avif" | b"avis") => "AVIF",
            Some(b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"mif1" | b"msf1") => "HEIC",
            _ => "MP4 or QuickTime",
        }
    } else if at(0, b"II*\0") || at(0, b"MM\0*") {
        "TIFF"
    } else if at(0, b"BM") && bytes.len() > 26 {
        "BMP"
    } else if at(0, &[0xff, 0x0a]) || at(4, b"JXL ") {
        "JPEG XL"
    } else if at(4, b"jP  ") || at(0, &[0xff, 0x4f, 0xff, 0x51]) {
        "JPEG 2000"
    } else if at(0, b"%PDF") {
        "PDF"
    } else if at(0, b"<svg") || at(0, b"<?xml") {
        "SVG or XML"
    } else if at(0, b"version https://git-lfs") {
        "Git LFS pointer (the picture itself was not fetched)"
    } else {
        let shown: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        return ImageError::NotAPicture(shown.join(" "));
    };
    ImageError::Format(name)
}

/// Refuses what has no pixels or too many.
fn check_size(width: u64, height: u64) -> Result<(), ImageError> {
    if width == 0 || height == 0 {
        Err(ImageError::NoPixels { width, height })
    } else if width.saturating_mul(height) > MAX_PIXELS {
        Err(ImageError::TooLarge { width, height })
    } else {
        Ok(())
    }
}
