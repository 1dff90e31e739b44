//! JPEG. The markers are walked here, for size, orientation and wholeness, before the decoder sees the file.
//!
//! Against libjpeg-turbo (what Pillow uses) a decoded sample differs by at most 2 without chroma subsampling; where
//! chroma is interpolated, by at most 4 and by less than 0.5 on average. The tests hold this.

use super::{ImageError, Orientation, Rgb, check_size};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Progressive scans of an ordinary file: about ten. The limit keeps a hostile one from costing hours.
const MAX_SCANS: usize = 128;

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb, ImageError> {
    let header = Header::read(bytes)?;
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .set_strict_mode(false)
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let data = decoder.decode().map_err(|error| match error {
        DecodeErrors::Unsupported(scheme) => ImageError::JpegVariant(format!("{scheme:?}")),
        DecodeErrors::ExhaustedData => ImageError::Truncated("JPEG"),
        other => damaged(&format!("{other:?}")),
    })?;
    let (width, height) = (usize::from(header.width), usize::from(header.height));
    if data.len() != 3 * width * height {
        return Err(damaged("what was decoded has another size than the header says"));
    }
    Ok(header.orientation.apply(Rgb { width, height, data }))
}

fn damaged(what: &str) -> ImageError {
    ImageError::Damaged { format: "JPEG", what: what.split_whitespace().collect::<Vec<_>>().join(" ") }
}

/// What the markers up to the end of the picture say.
struct Header {
    width: u16,
    height: u16,
    orientation: Orientation,
}

const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const SOS: u8 = 0xda;
const APP1: u8 = 0xe1;

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        let cut = || ImageError::Truncated("JPEG");
        let mut frame = None;
        let mut orientation = None;
        let mut at = 2;
        loop {
            // Fill bytes and stray data before a marker are skipped, as libjpeg does; so is entropy-coded data, in
            // which 0xff is followed by 0 or by a restart marker.
            at += bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff)).ok_or_else(cut)?;
            while bytes.get(at) == Some(&0xff) {
                at += 1;
            }
            let marker = *bytes.get(at).ok_or_else(cut)?;
            at += 1;
            match marker {
                // Stuffed zero, TEM, restarts.
                0x00 | 0x01 | 0xd0..=SOI => continue,
                EOI => break,
                _ => {}
            }
            let length = bytes.get(at..at + 2).ok_or_else(cut)?;
            let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
            if length < 2 {
                return Err(damaged("a segment shorter than its own length field"));
            }
            let segment = bytes.get(at + 2..at + length).ok_or_else(cut)?;
            at += length;
            match marker {
                0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                    frame = frame.or(Some(Self::frame(marker, segment)?));
                }
                APP1 if orientation.is_none() => {
                    orientation = segment.strip_prefix(b"Exif\0\0").map(Orientation::of_tiff);
                }
                SOS if frame.is_none() => return Err(damaged("no frame header before the first scan")),
                _ => {}
            }
        }
        let (width, height) = frame.ok_or_else(|| damaged("no frame header"))?;
        Ok(Self { width, height, orientation: orientation.unwrap_or_default() })
    }

    /// The size, where the frame is of a kind that is decoded. JPEG (T.81) table B.1 and B.2.2.
    fn frame(marker: u8, segment: &[u8]) -> Result<(u16, u16), ImageError> {
        let &[precision, h1, h0, w1, w0, components, ..] = segment else { return Err(damaged("a short frame header")) };
        let (width, height) = (u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]));
        let variant = |what: &str| Err(ImageError::JpegVariant(what.into()));
        match marker {
            0xc0..=0xc2 => {}
            0xc3 | 0xc7 => return variant("lossless"),
            0xc5 | 0xc6 => return variant("hierarchical"),
            _ => return variant("arithmetic-coded"),
        }
        if precision != 8 {
            return variant(&format!("of {precision} bits a sample"));
        }
        if !matches!(components, 1 | 3 | 4) {
            return variant(&format!("of {components} colour components"));
        }
        check_size(width.into(), height.into())?;
        Ok((width, height))
    }
}
