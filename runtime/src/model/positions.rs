//! Rotary positions of a prompt: time, row, column.

use super::error::ModelError;

/// Positions of the tokens of a prompt, and the one that follows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// (t, h, w) of each token.
    pub tokens: Vec<[u32; 3]>,
    /// Position of the next token, on all three axes.
    pub next: u32,
}

impl Positions {
    /// Those of `tokens` words, the first at `start`.
    #[must_use]
    pub fn text(start: u32, tokens: usize) -> Positions {
        let next = start.saturating_add(u32::try_from(tokens).unwrap_or(u32::MAX));
        Positions { tokens: (start..next).map(|position| [position; 3]).collect(), next }
    }
}

/// Positions of `ids`, the first token at `start`.
///
/// A text token takes one position on all axes. The tokens of an image of `rows x columns` stand at (p, p + row,
/// p + column) and move p on by the larger of the two. `grids` are the images' patch rows and columns; one token
/// stands for `merge x merge` patches.
///
/// # Errors
/// Image tokens that are not exactly those of the grids, in their order.
pub fn positions(
    ids: &[u32],
    start: u32,
    image_token: Option<u32>,
    grids: &[[usize; 2]],
    merge: usize,
) -> Result<Positions, ModelError> {
    let expected: usize = grids.iter().map(|g| g[0] / merge.max(1) * (g[1] / merge.max(1))).sum();
    let found = ids.iter().filter(|&&id| Some(id) == image_token).count();
    let mismatch = || ModelError::ImageTokens { found, expected, images: grids.len() };
    if found != expected {
        return Err(mismatch());
    }
    let (mut at, mut p) = (0, start);
    let mut tokens = Vec::with_capacity(ids.len());
    let mut grids = grids.iter();
    while at < ids.len() {
        if Some(ids[at]) != image_token {
            tokens.push([p; 3]);
            (at, p) = (at + 1, p + 1);
            continue;
        }
        let grid = grids.next().ok_or_else(mismatch)?;
        let (rows, columns) = (grid[0] / merge.max(1), grid[1] / merge.max(1));
        let run = ids[at..].iter().take(rows * columns).take_while(|&&id| Some(id) == image_token).count();
        if run != rows * columns || run == 0 {
            return Err(mismatch());
        }
        for row in 0..rows as u32 {
            tokens.extend((0..columns as u32).map(|column| [p, p + row, p + column]));
        }
        (at, p) = (at + run, p + rows.max(columns) as u32);
    }
    Ok(Positions { tokens, next: p })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: u32 = 9;

    #[test]
    fn text_counts_up_on_all_axes() {
        let got = positions(&[1, 2, 3], 5, Some(IMAGE), &[], 2).unwrap();
        assert_eq!(got, Positions { tokens: vec![[5; 3], [6; 3], [7; 3]], next: 8 });
    }

    /// The rule of `get_rope_index` of transformers, worked out by hand: 2 x 3 merged patches after two words.
    #[test]
    fn an_image_spreads_over_rows_and_columns_and_moves_on_by_the_larger() {
        let ids = [1, 2, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE, 3];
        let got = positions(&ids, 0, Some(IMAGE), &[[4, 6]], 2).unwrap();
        let image = [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]];
        assert_eq!(&got.tokens[2..8], &image);
        assert_eq!((got.tokens[8], got.next), ([5; 3], 6));
    }

    #[test]
    fn two_images_without_a_word_between_them() {
        let got = positions(&[IMAGE; 5], 0, Some(IMAGE), &[[2, 2], [4, 4]], 2).unwrap();
        assert_eq!(got.tokens, [[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]]);
        assert_eq!(got.next, 3);
    }

    #[test]
    fn image_tokens_that_fit_no_grid_are_refused() {
        for (ids, grids) in [
            (vec![IMAGE, IMAGE], vec![]),
            (vec![IMAGE], vec![[4, 2]]),
            (vec![1], vec![[2, 2]]),
            (vec![IMAGE, 1, IMAGE], vec![[4, 2]]),
            (vec![IMAGE], vec![[2, 2], [0, 0]]),
        ] {
            let got = positions(&ids, 0, Some(IMAGE), &grids, 2);
            let fits = grids == [[2, 2], [0, 0]];
            assert_eq!(got.is_ok(), fits, "{ids:?} {grids:?}");
        }
    }
}
