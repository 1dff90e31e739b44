//! PNG, exactly as Pillow converts it.

use super::{ImageError, Orientation, Rgb, check_size};
use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Transformations};
use std::io::Cursor;

pub(super) const SIGNATURE: &[u8] = &[0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];

/// What the decoder may hold besides the picture: text chunks, profiles, the row buffers of an interlaced picture.
const SIDE_BYTES: usize = 64 << 20;

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb, ImageError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: SIDE_BYTES });
    // Palette to RGB, grey of 1, 2 and 4 bits to 8: all exact. 16 bits stay, since what becomes of them is Pillow's
    // choice.
    decoder.set_transformations(Transformations::EXPAND);
    let header = decoder.read_header_info().map_err(error)?;
    let (width, height) = (header.width, header.height);
    check_size(width.into(), height.into())?;
    let mut reader = decoder.read_info().map_err(error)?;
    let (color, depth) = reader.output_color_type();
    let Some(size) = reader.output_buffer_size() else {
        return Err(ImageError::TooLarge { width: width.into(), height: height.into() });
    };
    let mut raw = vec![0; size];
    // An animated PNG's first frame is as small as it likes; the picture is the whole canvas or nothing.
    let frame = reader.next_frame(&mut raw).map_err(error)?;
    if (frame.width, frame.height) != (width, height) {
        return Err(ImageError::Damaged { format: "PNG", what: "its first frame is not the whole picture".into() });
    }
    // The orientation may stand behind the picture; what else is wrong there does not matter any more.
    let _ = reader.finish();
    let orientation =
        reader.info().exif_metadata.as_ref().map_or(Orientation::Upright, |exif| Orientation::of_tiff(exif));
    let clips = reader.info().color_type == ColorType::Grayscale;
    let data = rgb(&raw, color, depth, clips)
        .ok_or_else(|| ImageError::Damaged { format: "PNG", what: format!("{color:?} of {depth:?} bits") })?;
    Ok(orientation.apply(Rgb { width: width as usize, height: height as usize, data }))
}

/// Expanded samples to RGB; `None` for what the expansion never leaves. Grey of 16 bits without an alpha channel of its
/// own is Pillow's mode `I;16`, whose conversion to RGB clips at 255: `clips`.
fn rgb(raw: &[u8], color: ColorType, depth: BitDepth, clips: bool) -> Option<Vec<u8>> {
    let channels = color.samples();
    let grey = channels < 3;
    Some(match depth {
        BitDepth::Eight if color == ColorType::Rgb => raw.to_vec(),
        BitDepth::Eight => raw.chunks_exact(channels).flat_map(|p| pick(p, grey)).collect(),
        BitDepth::Sixteen if clips => {
            raw.chunks_exact(2 * channels).flat_map(|p| [if p[0] == 0 { p[1] } else { 255 }; 3]).collect()
        }
        // Everything else of 16 bits keeps the high byte.
        BitDepth::Sixteen => {
            let step = if grey { 0 } else { 2 };
            raw.chunks_exact(2 * channels).flat_map(|p| [p[0], p[step], p[2 * step]]).collect()
        }
        _ => return None,
    })
}

fn pick(pixel: &[u8], grey: bool) -> [u8; 3] {
    if grey { [pixel[0]; 3] } else { [pixel[0], pixel[1], pixel[2]] }
}

fn error(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => ImageError::Truncated("PNG"),
        DecodingError::LimitsExceeded => {
            ImageError::Damaged { format: "PNG", what: "it needs more memory than such a picture should".into() }
        }
        other => ImageError::Damaged { format: "PNG", what: one_line(&other.to_string()) },
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
