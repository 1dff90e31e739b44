//! Times, and what is made of several.

use std::time::{Duration, Instant};

/// How often something is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Alternations between us and the peer.
    pub(super) rounds: usize,
    /// Shapes as small as they go: nothing that is measured means anything then.
    pub(super) quick: bool,
}

/// The least of a few runs, after one that warms up: what the work takes when nobody interferes.
pub(super) fn best(effort: Effort, mut work: impl FnMut()) -> f64 {
    work();
    if effort.quick {
        return seconds(&mut work);
    }
    let (start, mut least) = (Instant::now(), f64::INFINITY);
    for run in 0..50 {
        least = least.min(seconds(&mut work));
        if run >= 2 && start.elapsed() > Duration::from_millis(400) {
            break;
        }
    }
    least
}

/// One run.
pub(super) fn seconds(work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The middle of the values; `None` of none.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, f64::NAN, 1.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }
}
