//! Decoded pictures against Pillow's, and files that are no pictures.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use runtime::image::{ImageError, Rgb, decode};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/images")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// Every fixture with what Pillow made of it.
fn fixtures() -> Vec<(String, Rgb)> {
    let expected = file("expected.bin");
    let index = String::from_utf8(file("expected.txt")).unwrap();
    index
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [width, height, offset] = [1, 2, 3].map(|i| words[i].parse::<usize>().unwrap());
            let data = expected[offset..offset + 3 * width * height].to_vec();
            (words[0].to_owned(), Rgb { width, height, data })
        })
        .collect()
}

/// The greatest difference of a sample, and the mean one.
fn difference(a: &Rgb, b: &Rgb) -> (u8, f64) {
    assert_eq!((a.width, a.height), (b.width, b.height));
    let each = || a.data.iter().zip(&b.data).map(|(a, b)| a.abs_diff(*b));
    (each().max().unwrap(), each().map(f64::from).sum::<f64>() / a.data.len() as f64)
}

#[test]
fn every_png_is_pillows_to_the_bit() {
    let mut seen = 0;
    for (name, expected) in fixtures().iter().filter(|(name, _)| name.ends_with(".png")) {
        let got = decode(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(difference(&got, expected), (0, 0.0), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 21);
}

#[test]
fn every_jpeg_is_pillows_within_the_standards_tolerance() {
    let mut seen = 0;
    for (name, expected) in fixtures().iter().filter(|(name, _)| name.ends_with(".jpg")) {
        let got = decode(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (greatest, mean) = difference(&got, expected);
        println!("{name}: at most {greatest}, {mean:.3} on average");
        let limit = if name.contains("42") { 4 } else { 2 };
        assert!(greatest <= limit && mean < 0.5, "{name}: at most {greatest}, {mean:.3} on average");
        seen += 1;
    }
    assert_eq!(seen, 20);
}

#[test]
fn what_is_no_picture_is_refused_by_name() {
    let ftyp = |brand: &[u8]| [b"\0\0\0\x18ftyp", brand, b"\0\0\0\0"].concat();
    let named: [(&str, Vec<u8>); 7] = [
        ("WebP", b"RIFF\x10\0\0\0WEBPVP8 ".to_vec()),
        ("GIF", b"GIF89a\x01\0\x01\0".to_vec()),
        ("HEIC", ftyp(b"heic")),
        ("AVIF", ftyp(b"avif")),
        ("TIFF", b"II*\0\x08\0\0\0".to_vec()),
        ("PDF", b"%PDF-1.7\n".to_vec()),
        ("LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".to_vec()),
    ];
    for (name, bytes) in named {
        match decode(&bytes) {
            Err(error @ ImageError::Format(_)) => assert!(error.to_string().contains(name), "{error}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(decode(b""), Err(ImageError::Empty));
    assert!(matches!(decode(b"hello, world"), Err(ImageError::NotAPicture(_))));
    assert!(matches!(decode(b"\xff"), Err(ImageError::NotAPicture(_))));
}

/// Puts another size into a JPEG's frame header or a PNG's IHDR (whose checksum is made right again).
fn resized(name: &str, width: u32, height: u32) -> Vec<u8> {
    let mut bytes = file(name);
    if name.ends_with(".png") {
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        let sum = crc32(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&sum.to_be_bytes());
    } else {
        let at = bytes.windows(2).position(|pair| pair[0] == 0xff && matches!(pair[1], 0xc0 | 0xc2)).unwrap();
        bytes[at + 5..at + 7].copy_from_slice(&(height as u16).to_be_bytes());
        bytes[at + 7..at + 9].copy_from_slice(&(width as u16).to_be_bytes());
    }
    bytes
}

/// The polynomial of PNG's annex D, a bit at a time.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    })
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    for name in ["rgb.png", "interlaced.png", "444.jpg", "progressive.jpg", "cmyk.jpg"] {
        assert_eq!(
            decode(&resized(name, 60_000, 60_000)),
            Err(ImageError::TooLarge { width: 60_000, height: 60_000 }),
            "{name}"
        );
        let zero = decode(&resized(name, 0, 5));
        assert!(zero.is_err(), "{name}: {zero:?}");
    }
    // The greatest that the formats can state.
    assert!(decode(&resized("rgb.png", u32::MAX >> 1, u32::MAX >> 1)).is_err());
    assert!(decode(&resized("444.jpg", 65_535, 65_535)).is_err());
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for name in ["rgb.png", "interlaced.png", "444.jpg", "420.jpg", "progressive.jpg", "restarts.jpg", "oriented-6.jpg"]
    {
        let whole = file(name);
        // A PNG is whole once its picture data is: the last chunk, IEND, holds nothing.
        let needed = if name.ends_with(".png") { whole.len() - 16 } else { whole.len() };
        for len in (1..needed).step_by(7).chain([needed - 1]) {
            let got = decode(&whole[..len]);
            assert!(got.is_err(), "{name} cut to {len} of {} bytes: {got:?}", whole.len());
        }
        assert_eq!(decode(&whole[..needed * 2 / 3]).unwrap_err().to_string().matches("cut short").count(), 1, "{name}");
    }
}

#[test]
fn variants_that_nobody_decodes_are_named() {
    let with_frame = |marker: u8, precision: u8| {
        let mut bytes = file("444.jpg");
        let at = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
        bytes[at + 1] = marker;
        bytes[at + 4] = precision;
        decode(&bytes).unwrap_err().to_string()
    };
    assert!(with_frame(0xc3, 8).contains("lossless"));
    assert!(with_frame(0xc9, 8).contains("arithmetic"));
    assert!(with_frame(0xc1, 12).contains("12 bits"));
}

#[test]
fn no_byte_can_make_the_decoder_panic() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let mut survived = 0;
    for (name, expected) in fixtures() {
        let whole = file(&name);
        for round in 0..120 {
            let mut bytes = whole.clone();
            for _ in 0..=round % 5 {
                let at = next() % bytes.len();
                bytes[at] = next() as u8;
            }
            if let Ok(got) = decode(&bytes) {
                assert_eq!(got.data.len(), 3 * got.width * got.height);
                survived += usize::from(got.width == expected.width);
            }
        }
    }
    // Bytes inside entropy-coded data only change the picture.
    assert!(survived > 100, "{survived}");
}
