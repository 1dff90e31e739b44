use super::*;
use crate::testing::{Random, fixture};

const QWEN: Config = Config { patch: 16, merge: 2, min_pixels: 65_536, max_pixels: 1_048_576 };

#[test]
fn golden_patches() {
    // An image of 97 x 61 pixels through transformers' processor.
    let (rgb, golden) = (fixture("image.rgb.u8"), fixture("image.patches.u8"));
    for threads in [1, 3] {
        let patches = preprocess(&Pool::new(threads), &rgb, 61, 97, &QWEN).unwrap();
        assert_eq!(patches.grid, [14, 22]);
        assert_eq!(patches.data.len(), golden.len());
        for (i, (&x, &v)) in patches.data.iter().zip(&golden).enumerate() {
            assert_eq!(x, (f32::from(v) - 127.5) / 127.5, "value {i}");
        }
    }
}

#[test]
fn sizes_in_every_branch() {
    let size = |h, w| smart_resize(h, w, &QWEN).unwrap();
    // Between the limits: to the nearest multiple, halves to the even one.
    assert_eq!(size(427, 640), [416, 640]);
    assert_eq!(size(512, 496), [512, 512]);
    assert_eq!(size(528, 528), [512, 512]);
    // Too small: up, rounding up.
    assert_eq!(size(61, 97), [224, 352]);
    assert_eq!(size(1, 1), [256, 256]);
    assert_eq!(size(10, 100), [96, 832]);
    // Too large: down, rounding down, never to nothing.
    assert_eq!(size(4000, 3000), [1152, 864]);
    assert_eq!(size(60_000, 300), [14464, 64]);
    for (h, w) in [(1, 200), (33, 65), (3000, 2000), (100, 20_000), (7, 1000), (1024, 1024), (256, 256)] {
        let [a, b] = size(h, w);
        assert!(a % 32 == 0 && b % 32 == 0 && a * b >= 65_536 && a * b <= 1_048_576, "{h} x {w}: {a} x {b}");
    }
    let none = Config { min_pixels: 0, ..QWEN };
    assert_eq!(smart_resize(3, 40, &none), Ok([32, 32]));
}

#[test]
fn refusals_say_why() {
    assert_eq!(smart_resize(0, 5, &QWEN), Err(ImageError::Empty { width: 5, height: 0 }));
    assert_eq!(smart_resize(1, 201, &QWEN), Err(ImageError::Aspect { width: 201, height: 1 }));
    assert!(smart_resize(1, 200, &QWEN).is_ok());
    let pool = Pool::serial();
    assert_eq!(resize(&pool, &[0; 11], [2, 2], [4, 4]), Err(ImageError::Length { width: 2, height: 2, bytes: 11 }));
    assert!(matches!(resize(&pool, &[0; 12], [2, 2], [0, 4]), Err(ImageError::Empty { .. })));
    let error = preprocess(&pool, &[0; 3], 5, 5, &QWEN).unwrap_err();
    assert_eq!(error.to_string(), "5 x 5 RGB pixels are 75 bytes, got 3");
}

#[test]
fn one_colour_stays_one_colour() {
    for (from, to) in [([7, 9], [64, 32]), ([300, 200], [32, 64]), ([1, 1], [32, 32]), ([64, 10], [64, 32])] {
        let rgb: Vec<u8> = [200, 3, 77].into_iter().cycle().take(3 * from[0] * from[1]).collect();
        let out = resize(&Pool::new(2), &rgb, from, to).unwrap();
        assert_eq!(out.len(), 3 * to[0] * to[1]);
        assert!(out.as_chunks::<3>().0.iter().all(|p| *p == [200, 3, 77]), "{from:?} to {to:?}");
    }
}

#[test]
fn mirrored_images_resize_to_mirrored_images() {
    // The weights are symmetric; only the fixed point's rounding is not.
    let mut random = Random::new(18);
    let rgb: Vec<u8> = (0..3 * 40 * 50).map(|_| random.next() as u8).collect();
    let mirror = |x: &[u8], w: usize| -> Vec<u8> {
        x.chunks_exact(3 * w).flat_map(|row| row.chunks_exact(3).rev().flatten().copied().collect::<Vec<_>>()).collect()
    };
    let pool = Pool::serial();
    let (a, b) = (
        resize(&pool, &rgb, [40, 50], [32, 64]).unwrap(),
        resize(&pool, &mirror(&rgb, 50), [40, 50], [32, 64]).unwrap(),
    );
    assert!(mirror(&b, 64).iter().zip(&a).all(|(x, y)| x.abs_diff(*y) <= 1));
    assert_eq!(resize(&pool, &rgb, [40, 50], [40, 50]).unwrap(), rgb);
}

#[test]
fn block_order_walks_blocks() {
    let order: Vec<_> = block_order([4, 4], 2).collect();
    assert_eq!(order[..8], [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
    assert_eq!(order[8], (2, 0));
    let mut sorted = order;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..4).flat_map(|r| (0..4).map(move |c| (r, c))).collect::<Vec<_>>());
}

#[test]
fn positions_are_exact_on_the_table_and_linear_between() {
    // A table linear in row and column is reproduced at any size.
    let side = 5;
    let table: Vec<f32> = (0..side * side).flat_map(|i| [(i / side) as f32, (i % side) as f32, 1.0]).collect();
    for grid in [[2, 2], [4, 8], [10, 6], [48, 2]] {
        let mut x = vec![10.0; grid[0] * grid[1] * 3];
        add_positions(&table, side, grid, 2, &mut x);
        for ((r, c), x) in block_order(grid, 2).zip(x.chunks(3)) {
            let at = |i: usize, n: usize| i as f32 * 4.0 / (n - 1) as f32;
            assert!((x[0] - 10.0 - at(r, grid[0])).abs() < 1e-5, "{grid:?}");
            assert!((x[1] - 10.0 - at(c, grid[1])).abs() < 1e-5, "{grid:?}");
            assert!((x[2] - 11.0).abs() < 1e-5);
        }
    }
}
