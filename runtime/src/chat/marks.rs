//! Points that a conversation can go back to.
//!
//! What a DeltaNet layer remembers cannot be shortened, so a state can only return to a place where a copy of it was
//! taken. Copies cost memory: the newest are kept, and of older ones fewer and fewer, so that going back far costs a
//! bounded share of what was said since.

/// How much a session may keep for going back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkLimits {
    /// Places.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

impl Default for MarkLimits {
    /// Sixteen places, 512 MB: a 2B model takes 19 MB for one.
    fn default() -> Self {
        MarkLimits { count: 16, bytes: 512 << 20 }
    }
}

/// One place.
#[derive(Clone, Debug)]
pub(super) struct Mark<S> {
    /// Tokens before it.
    pub(super) len: usize,
    /// What the model remembered there.
    pub(super) snapshot: S,
    /// What that takes.
    pub(super) bytes: usize,
}

/// Places in their order, each once.
#[derive(Clone, Debug)]
pub(super) struct Marks<S> {
    kept: Vec<Mark<S>>,
}

impl<S> Default for Marks<S> {
    fn default() -> Self {
        Marks { kept: Vec::new() }
    }
}

impl<S> Marks<S> {
    /// The last place that has at most `len` tokens before it.
    pub(super) fn latest(&self, len: usize) -> Option<&Mark<S>> {
        self.kept.iter().rfind(|mark| mark.len <= len)
    }

    /// Whether there is one with exactly so many tokens before it.
    pub(super) fn has(&self, len: usize) -> bool {
        self.kept.iter().any(|mark| mark.len == len)
    }

    /// Forgets the places beyond `len` tokens.
    pub(super) fn cut(&mut self, len: usize) {
        self.kept.retain(|mark| mark.len <= len);
    }

    /// Adds one.
    pub(super) fn add(&mut self, mark: Mark<S>) {
        let at = self.kept.partition_point(|kept| kept.len < mark.len);
        match self.kept.get_mut(at).filter(|kept| kept.len == mark.len) {
            Some(same) => *same = mark,
            None => self.kept.insert(at, mark),
        }
    }

    /// Forgets places until they keep to the limits. The last one stays, whatever it takes; the first one, where other
    /// conversations with the same beginning part, goes last.
    pub(super) fn thin(&mut self, limits: MarkLimits) {
        while self.kept.len() > 1 && (self.kept.len() > limits.count || self.bytes() > limits.bytes) {
            let end = self.kept.last().map_or(0, |last| last.len);
            // What is lost with a place is the stretch that has to be read again from the one before it: it weighs less
            // the longer ago it was.
            let weight = |i: &usize| {
                let gap = self.kept[i + 1].len - self.kept[i - 1].len;
                gap as f64 / (end - self.kept[*i].len).max(1) as f64
            };
            let least = (1..self.kept.len() - 1).min_by(|a, b| weight(a).total_cmp(&weight(b)));
            self.kept.remove(least.unwrap_or(0));
        }
    }

    /// What they take.
    pub(super) fn bytes(&self) -> usize {
        self.kept.iter().map(|mark| mark.bytes).sum()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(len: usize) -> Mark<usize> {
        Mark { len, snapshot: len, bytes: 10 }
    }

    fn lens(marks: &Marks<usize>) -> Vec<usize> {
        marks.kept.iter().map(|m| m.len).collect()
    }

    #[test]
    fn the_latest_place_not_beyond_and_each_once() {
        let mut marks = Marks::default();
        for len in [30, 10, 20, 10] {
            marks.add(mark(len));
        }
        assert_eq!(lens(&marks), [10, 20, 30]);
        assert_eq!(marks.latest(9).map(|m| m.len), None);
        assert_eq!(marks.latest(20).map(|m| m.len), Some(20));
        assert_eq!(marks.latest(29).map(|m| m.len), Some(20));
        assert!(marks.has(30) && !marks.has(31));
        marks.cut(29);
        assert_eq!((lens(&marks), marks.bytes()), (vec![10, 20], 20));
    }

    /// Two hundred turns of forty tokens: wherever one goes back to, the place found is at most as far before it as what
    /// has been said since, and a bit.
    #[test]
    fn going_back_costs_a_bounded_share_of_what_was_said_since() {
        let mut marks = Marks::default();
        for turn in 1..=200 {
            marks.add(mark(turn * 40));
            marks.thin(MarkLimits { count: 16, bytes: usize::MAX });
            assert!(marks.count() <= 16);
        }
        let end = 200 * 40;
        assert_eq!((lens(&marks)[0], lens(&marks)[15]), (40, end), "the first and the last are there");
        for back in (40..=end).step_by(40) {
            let found = marks.latest(back).map_or(0, |m| m.len);
            assert!(back - found <= (end - back) + 40, "{back}: {found} of {:?}", lens(&marks));
        }
    }

    #[test]
    fn a_budget_of_bytes_leaves_the_last_one() {
        let mut marks = Marks::default();
        for len in 1..9 {
            marks.add(mark(len));
        }
        marks.thin(MarkLimits { count: 100, bytes: 35 });
        assert_eq!((marks.count(), lens(&marks)[0], lens(&marks)[2]), (3, 1, 8));
        marks.thin(MarkLimits { count: 100, bytes: 5 });
        assert_eq!(lens(&marks), [8]);
    }
}
