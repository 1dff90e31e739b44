//! What ends an answer besides the model: texts that it must not contain, and going round in circles.

/// Why stop strings were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// An empty one would end every answer before it begins.
    #[error("stop string {index} is empty: it would end every answer at once")]
    Empty {
        /// Which one, from 0.
        index: usize,
    },
    /// More than could be watched for at a reasonable cost.
    #[error("{count} stop strings, allowed: at most {MAX_STOPS}")]
    Many {
        /// How many there are.
        count: usize,
    },
    /// One that would hold back a whole answer.
    #[error("stop string {index} has {length} bytes, allowed: at most {MAX_STOP_BYTES}")]
    Long {
        /// Which one, from 0.
        index: usize,
        /// Its length.
        length: usize,
    },
}

/// The most stop strings of an answer.
pub const MAX_STOPS: usize = 64;
/// The most bytes of one.
pub const MAX_STOP_BYTES: usize = 1024;

/// Ends a text at the first stop string, which is never shown.
///
/// Text is held back only as long as it may still become a stop string. How the text is cut into pieces changes
/// nothing: the string that is complete first ends it, and of two that are complete at the same character the longer.
#[derive(Clone, Debug, Default)]
pub struct StopStream {
    stops: Vec<String>,
    /// The beginning of a stop string, perhaps.
    held: String,
    ended: bool,
}

impl StopStream {
    /// Watches for these strings.
    ///
    /// # Errors
    /// Empty strings, and too many or too long ones.
    pub fn new(stops: Vec<String>) -> Result<StopStream, StopError> {
        if stops.len() > MAX_STOPS {
            return Err(StopError::Many { count: stops.len() });
        }
        for (index, stop) in stops.iter().enumerate() {
            match stop.len() {
                0 => return Err(StopError::Empty { index }),
                length if length > MAX_STOP_BYTES => return Err(StopError::Long { index, length }),
                _ => {}
            }
        }
        Ok(StopStream { stops, held: String::new(), ended: false })
    }

    /// Appends to `out` what can be shown. Says which stop string was found; what comes after it is nobody's.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.ended {
            return None;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        for c in text.chars() {
            self.held.push(c);
            let complete = self.stops.iter().enumerate().filter(|(_, stop)| self.held.ends_with(stop.as_str()));
            if let Some((index, stop)) = complete.max_by_key(|(_, stop)| stop.len()) {
                out.push_str(&self.held[..self.held.len() - stop.len()]);
                self.held.clear();
                self.ended = true;
                return Some(index);
            }
            let may_be = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
            let keep = self.held.char_indices().map(|(at, _)| at).find(may_be).unwrap_or(self.held.len());
            out.push_str(&self.held[..keep]);
            self.held.drain(..keep);
        }
        None
    }

    /// The text is over: what was held back is shown after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// When an answer goes round in circles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopLimits {
    /// The longest circle, in tokens.
    pub period: usize,
    /// How often it must have been gone through.
    pub rounds: usize,
    /// How many tokens all rounds must have together.
    pub tokens: usize,
}

impl Default for LoopLimits {
    /// Wide enough for what is repeated on purpose (rows of zeros, rulers, equal table rows), and narrow enough to end
    /// an answer long before the context does.
    fn default() -> Self {
        LoopLimits { period: 512, rounds: 4, tokens: 768 }
    }
}

/// A circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circle {
    /// Tokens of one round.
    pub period: usize,
    /// Tokens since it began.
    pub tokens: usize,
}

impl std::fmt::Display for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.period == 1 { "" } else { "s" };
        write!(f, "the same {} token{plural} came {} times in a row", self.period, self.tokens / self.period)
    }
}

/// Notices exact repetition of tokens: for every period, how long the last tokens have been equal to those one period
/// before. A step costs `period` comparisons and allocates nothing.
#[derive(Clone, Debug)]
pub struct LoopGuard {
    limits: LoopLimits,
    /// The last `period` tokens, in a ring.
    last: Vec<u32>,
    seen: usize,
    /// For each period, less one: tokens in a row that were equal.
    equal: Vec<u32>,
}

impl LoopGuard {
    /// A guard. One with a period of 0 never speaks.
    #[must_use]
    pub fn new(limits: LoopLimits) -> LoopGuard {
        LoopGuard { limits, last: vec![0; limits.period], seen: 0, equal: vec![0; limits.period] }
    }

    /// A new answer.
    pub fn reset(&mut self) {
        self.seen = 0;
        self.equal.fill(0);
    }

    /// Takes the next token; says whether the answer has been going round in circles.
    pub fn push(&mut self, token: u32) -> Option<Circle> {
        let ring = self.last.len();
        if ring == 0 {
            return None;
        }
        let mut found = None;
        for period in 1..=ring.min(self.seen) {
            let before = self.last[(self.seen - period) % ring];
            let equal = &mut self.equal[period - 1];
            *equal = if before == token { *equal + 1 } else { 0 };
            let tokens = *equal as usize + period;
            if found.is_none() && *equal > 0 && tokens >= self.limits.tokens.max(period * self.limits.rounds) {
                found = Some(Circle { period, tokens });
            }
        }
        self.last[self.seen % ring] = token;
        self.seen += 1;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut stream = StopStream::new(stops.iter().map(|stop| (*stop).to_owned()).collect()).unwrap();
        let mut out = String::new();
        let found = pieces.iter().find_map(|piece| stream.push(piece, &mut out));
        stream.finish(&mut out);
        (out, found)
    }

    #[test]
    fn a_stop_string_is_found_across_every_cut_and_never_shown() {
        let text = "aé\n\nUser: x\n\nUser";
        for (stops, shown, index) in [
            (&["\n\nUser:"][..], "aé", Some(0)),
            (&["nothing", "x"], "aé\n\nUser: ", Some(1)),
            (&["\n\nUsers"], text, None),
            (&["a"], "", Some(0)),
            (&["ser", "User"], "aé\n\n", Some(1)),
            (&["User: x", "ser"], "aé\n\nU", Some(1)),
            (&[], text, None),
        ] {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            for &i in &places {
                for &j in places.iter().filter(|&&j| j >= i) {
                    let got = cut(stops, &[&text[..i], &text[i..j], &text[j..]]);
                    assert_eq!(got, (shown.to_owned(), index), "{stops:?} {i} {j}");
                }
            }
        }
    }

    #[test]
    fn text_is_held_back_only_while_it_may_become_a_stop_string() {
        let mut stream = StopStream::new(vec!["<end>".into(), "aab".into()]).unwrap();
        let mut shown = |text: &str| {
            let mut out = String::new();
            assert_eq!(stream.push(text, &mut out), None);
            out
        };
        assert_eq!(shown("x < y"), "x < y");
        assert_eq!(shown("<en"), "");
        assert_eq!(shown("d!"), "<end!");
        assert_eq!(shown("aa"), "");
        assert_eq!(shown("a"), "a", "the last two may still be one");
        let mut out = String::new();
        assert_eq!(stream.push("b and more", &mut out), Some(1));
        assert_eq!(out, "");
        assert_eq!(stream.push("even more", &mut out), None);
        stream.finish(&mut out);
        assert_eq!(out, "", "nothing comes after the end");
    }

    #[test]
    fn bad_stop_strings_are_refused() {
        assert_eq!(StopStream::new(vec!["a".into(), String::new()]).unwrap_err(), StopError::Empty { index: 1 });
        assert_eq!(StopStream::new(vec!["a".into(); 65]).unwrap_err(), StopError::Many { count: 65 });
        let long = StopStream::new(vec!["a".repeat(1025)]).unwrap_err();
        assert_eq!(long.to_string(), "stop string 0 has 1025 bytes, allowed: at most 1024");
    }

    fn first(tokens: impl IntoIterator<Item = u32>) -> Option<(usize, Circle)> {
        let mut guard = LoopGuard::new(LoopLimits::default());
        tokens.into_iter().enumerate().find_map(|(at, token)| guard.push(token).map(|circle| (at + 1, circle)))
    }

    #[test]
    fn circles_of_every_size_are_noticed_when_they_are_long_enough() {
        for (period, at) in [(1, 768), (2, 768), (17, 768), (192, 768), (300, 1200), (512, 2048)] {
            let lead = (0..100).map(|i| 10_000 + i);
            let got = first(lead.chain((0..5000).map(|i| i % period))).unwrap();
            let period = period as usize;
            assert_eq!(got, (100 + at, Circle { period, tokens: at }), "{period}");
        }
        assert_eq!(Circle { period: 3, tokens: 10 }.to_string(), "the same 3 tokens came 3 times in a row");
        assert_eq!(first((0..5000).map(|i| i % 513)), None, "beyond the longest circle");
    }

    /// A circle is noticed in one token after any other text, and an interrupted one begins anew.
    #[test]
    fn an_interruption_begins_the_count_anew() {
        let tokens = (0..767).map(|_| 5).chain([6]).chain((0..768).map(|_| 5));
        assert_eq!(first(tokens).unwrap().0, 767 + 1 + 768);
        let mut guard = LoopGuard::new(LoopLimits::default());
        for _ in 0..3 {
            assert!((0..767).all(|_| guard.push(1).is_none()));
            guard.reset();
        }
        let mut off = LoopGuard::new(LoopLimits { period: 0, ..LoopLimits::default() });
        assert!((0..5000).all(|_| off.push(1).is_none()));
    }

    /// Words as tokens: what people ask for on purpose.
    #[test]
    fn lists_and_tables_are_no_circles() {
        let words = |text: String| -> Vec<u32> {
            let mut known = std::collections::HashMap::new();
            let pieces = text.split_inclusive(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect::<Vec<_>>();
            pieces
                .into_iter()
                .map(|piece| {
                    let next = known.len() as u32;
                    *known.entry(piece).or_insert(next)
                })
                .collect()
        };
        let zeros = "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],\n".repeat(12);
        let counted: String = (1..400).map(|i| format!("{i}. The item number {i} is an item.\n")).collect();
        let table: String = (0..300).map(|i| format!("| row {i} | yes | no | - | - | - |\n")).collect();
        let ruler = format!("{}\n", "-".repeat(200));
        let code: String = (0..200).map(|i| format!("    case {i}: return table[{i}];\n")).collect();
        let verse = "row row row your boat gently down the stream\n".repeat(20);
        for text in [zeros, counted, table, ruler, code, verse] {
            let tokens = words(text);
            assert!(tokens.len() > 150);
            assert_eq!(first(tokens), None);
        }
    }
}
