//! The grammar of `manifest.txt`: one record a line, words separated by blanks.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::error::BundleError;

/// Name of the file.
pub(super) const MANIFEST: &str = "manifest.txt";
/// The version of the format that this runtime reads.
pub(super) const VERSION: u32 = 1;

/// One line: a tag, then fields; a field `key=value` can also be asked for by its key.
#[derive(Debug)]
pub(super) struct Record<'t> {
    pub(super) line: usize,
    pub(super) tag: &'t str,
    fields: Vec<&'t str>,
    text: &'t str,
}

impl<'t> Record<'t> {
    /// `None` for a blank line or a comment.
    fn new(line: usize, text: &'t str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let tag = words.next()?;
        if tag.starts_with('#') {
            return None;
        }
        Some(Self { line, tag, fields: words.collect(), text })
    }

    /// An error on this line.
    pub(super) fn error(&self, what: impl Into<String>) -> BundleError {
        BundleError::Line { file: MANIFEST, line: self.line, what: what.into() }
    }

    /// Field `index`, counted from 0; `what` names it in the error.
    pub(super) fn field(&self, index: usize, what: &str) -> Result<&'t str, BundleError> {
        self.fields
            .get(index)
            .copied()
            .ok_or_else(|| self.error(format!("`{}` needs {what} as field {}", self.tag, index + 1)))
    }

    /// The value of `key=`, if it is there. Of a repeated key the last counts.
    pub(super) fn key(&self, key: &str) -> Option<&'t str> {
        self.fields
            .iter()
            .rev()
            .find_map(|field| field.split_once('=').filter(|(name, _)| *name == key))
            .map(|(_, v)| v)
    }

    /// The value of `key=`.
    pub(super) fn required(&self, key: &str) -> Result<&'t str, BundleError> {
        self.key(key).ok_or_else(|| self.error(format!("`{}` needs `{key}=`", self.tag)))
    }

    /// The value of `key=` as a number.
    pub(super) fn number(&self, key: &str) -> Result<usize, BundleError> {
        let text = self.required(key)?;
        number(text).ok_or_else(|| self.error(format!("`{key}={text}`: expected a whole number below 2^48")))
    }

    /// The value of `key=` as 0 or 1, if it is there.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, BundleError> {
        match self.key(key) {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(other) => Err(self.error(format!("`{key}={other}`: expected 0 or 1"))),
        }
    }

    /// Everything after the first field, without the one blank that separates it.
    fn after_name(&self) -> &'t str {
        let mut rest = self.text;
        for _ in 0..2 {
            rest = rest.trim_start();
            rest = rest.find(char::is_whitespace).map_or("", |end| &rest[end..]);
        }
        rest.strip_prefix(' ').unwrap_or(rest)
    }
}

/// A whole number that no sane bundle exceeds, so that later sums and products of two cannot overflow unnoticed.
fn number(text: &str) -> Option<usize> {
    text.parse::<usize>().ok().filter(|value| *value < 1 << 48)
}

/// The records of a manifest, the parameters apart.
#[derive(Debug)]
pub(super) struct Lines<'t> {
    params: BTreeMap<&'t str, (usize, &'t str)>,
    /// Everything but `version` and `param`, in file order.
    pub(super) records: Vec<Record<'t>>,
}

impl<'t> Lines<'t> {
    /// Splits the text and checks version and parameter names.
    pub(super) fn read(text: &'t str) -> Result<Self, BundleError> {
        let mut version = None;
        let mut params = BTreeMap::new();
        let mut records = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let Some(record) = Record::new(index + 1, line) else { continue };
            match record.tag {
                "version" => {
                    if version.is_some() {
                        return Err(record.error("a second `version`; expected exactly one"));
                    }
                    let found = record.field(0, "a number")?;
                    if found.parse() != Ok(VERSION) {
                        let what =
                            format!("version `{found}`; this runtime reads version {VERSION}, export the bundle anew");
                        return Err(record.error(what));
                    }
                    version = Some(VERSION);
                }
                "param" => {
                    let name = record.field(0, "a name")?;
                    record.field(1, "a value")?;
                    if params.insert(name, (record.line, record.after_name())).is_some() {
                        return Err(record.error(format!("a second `param {name}`; expected one")));
                    }
                }
                _ => records.push(record),
            }
        }
        if version.is_none() {
            return Err(BundleError::Manifest { what: format!("no `version`; expected `version {VERSION}`") });
        }
        Ok(Self { params, records })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.params.contains_key(name)
    }

    /// The text of a parameter and its line.
    fn text(&self, name: &str) -> Result<(usize, &'t str), BundleError> {
        self.params
            .get(name)
            .copied()
            .ok_or_else(|| BundleError::Manifest { what: format!("`param {name}` is missing") })
    }

    /// A parameter's text, if it is there.
    pub(super) fn optional(&self, name: &str) -> Option<&'t str> {
        self.params.get(name).map(|(_, text)| *text)
    }

    /// An error on a parameter's line.
    pub(super) fn param_error(&self, name: &str, expected: &str) -> BundleError {
        match self.params.get(name) {
            Some((line, text)) => BundleError::Line {
                file: MANIFEST,
                line: *line,
                what: format!("`param {name} {text}`: expected {expected}"),
            },
            None => BundleError::Manifest { what: format!("`param {name}` is missing; expected {expected}") },
        }
    }

    /// A whole number in 1..=`most`.
    pub(super) fn count(&self, name: &str, most: usize) -> Result<usize, BundleError> {
        let (_, text) = self.text(name)?;
        number(text)
            .filter(|value| (1..=most).contains(value))
            .ok_or_else(|| self.param_error(name, &format!("a whole number from 1 to {most}")))
    }

    /// A whole number in 1..=`most`, or `default` if the parameter is absent.
    pub(super) fn count_or(&self, name: &str, most: usize, default: usize) -> Result<usize, BundleError> {
        if self.has(name) { self.count(name, most) } else { Ok(default) }
    }

    /// A token id.
    pub(super) fn id(&self, name: &str) -> Result<u32, BundleError> {
        let (_, text) = self.text(name)?;
        text.parse().map_err(|_| self.param_error(name, "a token id"))
    }

    /// A positive, finite number.
    pub(super) fn positive(&self, name: &str) -> Result<f32, BundleError> {
        let (_, text) = self.text(name)?;
        text.parse::<f32>()
            .ok()
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| self.param_error(name, "a positive number"))
    }

    /// A comma-separated list; empty items are skipped.
    pub(super) fn list<T: FromStr>(&self, name: &str, of: &str) -> Result<Vec<T>, BundleError> {
        let (_, text) = self.text(name)?;
        text.split(',')
            .filter(|item| !item.is_empty())
            .map(|item| item.parse().map_err(|_| self.param_error(name, &format!("a comma-separated list of {of}"))))
            .collect()
    }
}

/// The text behind a hex field; `-` is the empty text.
pub(super) fn hex_text(field: &str) -> Option<String> {
    if field == "-" {
        return Some(String::new());
    }
    let digits = field.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let bytes: Option<Vec<u8>> =
        digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect();
    String::from_utf8(bytes?).ok()
}

/// The hex field for a text.
pub(super) fn text_hex(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        Lines::read(text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn blanks_comments_and_carriage_returns_are_skipped() {
        let lines = Lines::read("# made\r\n\r\nversion 1\r\n  param D 2048\r\nparam note a  b \nmine 1\n").unwrap();
        assert_eq!(lines.count("D", 4096).unwrap(), 2048);
        assert_eq!(lines.optional("note"), Some("a  b "));
        assert_eq!(lines.records.len(), 1);
        assert_eq!((lines.records[0].line, lines.records[0].tag), (6, "mine"));
    }

    #[test]
    fn one_blank_separates_a_value() {
        let lines = Lines::read("version 1\nparam D  2048\nparam I 6144 \n").unwrap();
        assert_eq!(lines.optional("D"), Some(" 2048"));
        for name in ["D", "I"] {
            let message = lines.count(name, 1 << 20).unwrap_err().to_string();
            assert!(message.contains("expected a whole number"), "{message}");
        }
    }

    #[test]
    fn versions() {
        assert_eq!(message("param D 1\n"), "manifest.txt: no `version`; expected `version 1`");
        assert!(message("version 2\n").starts_with("manifest.txt:1: version `2`; this runtime reads version 1"));
        assert!(message("version 1\nversion 1\n").starts_with("manifest.txt:2: a second `version`"));
        assert!(message("version\n").starts_with("manifest.txt:1: `version` needs a number"));
    }

    #[test]
    fn parameters_come_once() {
        assert_eq!(message("version 1\nparam D 1\nparam D 1\n"), "manifest.txt:3: a second `param D`; expected one");
        assert_eq!(message("version 1\nparam D\n"), "manifest.txt:2: `param` needs a value as field 2");
    }

    #[test]
    fn the_last_of_a_repeated_key_counts() {
        let lines = Lines::read("version 1\ngemm a=1=2 x a=3\n").unwrap();
        let record = &lines.records[0];
        assert_eq!(record.key("a"), Some("3"));
        assert_eq!(record.field(0, "a key").unwrap(), "a=1=2");
        assert!(record.flag("a").unwrap_err().to_string().ends_with("`a=3`: expected 0 or 1"));
        assert!(record.required("b").unwrap_err().to_string().ends_with("`gemm` needs `b=`"));
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let lines = Lines::read("version 1\ngemm M=99999999999999999999 N=281474976710656 K=-1\n").unwrap();
        for key in ["M", "N", "K"] {
            assert!(lines.records[0].number(key).is_err());
        }
    }

    #[test]
    fn hex_both_ways() {
        for text in ["", "a", "Grüße, \u{1f600}\n"] {
            assert_eq!(hex_text(&text_hex(text)).as_deref(), Some(text));
        }
        for bad in ["", "6", "6g", "ff"] {
            assert_eq!(hex_text(bad), None, "{bad}");
        }
    }
}
