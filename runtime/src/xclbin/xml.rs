//! The kernels that the EMBEDDED_METADATA section describes.
//!
//! A small reader for the XML that the tools write: elements, attributes in quotes, comments, a declaration. No
//! document type, no entities.

use super::{Bytes, XclbinError, at, bad};

const LONGEST: usize = 1 << 20;
const DEEPEST: usize = 64;

/// A kernel as the XML describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its `dpu_kernel_id`.
    pub id: Option<u16>,
    /// The `cu_func` of its compute units: 0 for a DPU kernel.
    pub functional: u8,
    /// Its arguments in the order of the XML.
    pub arguments: Vec<Argument>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// 0 to 2 are opcode, instructions and their length; buffers follow.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Bytes, if the XML says so.
    pub size: Option<u16>,
    /// Its place in the command's payload, if the XML says so.
    pub offset: Option<u16>,
}

impl Kernel {
    /// Buffer arguments that a command may carry.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.arguments.iter().filter(|argument| argument.id >= 3).count()
    }
}

/// The kernels that the section describes.
pub(super) fn kernels(section: Bytes<'_>) -> Result<Vec<Kernel>, XclbinError> {
    let base = section.base;
    if section.bytes.len() > LONGEST {
        let what = format!("EMBEDDED_METADATA of {} bytes; expected at most {LONGEST}", section.bytes.len());
        return bad(base, what);
    }
    let text = std::str::from_utf8(section.bytes)
        .map_err(|error| at(base + error.valid_up_to(), "EMBEDDED_METADATA is not UTF-8"))?;
    let mut open: Vec<&str> = Vec::new();
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut inside = false;
    let mut rest = text.trim_end_matches('\0');
    let end = base + rest.len();
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        let here = end - rest.len();
        let tag = tag(&mut rest).map_err(|what| at(here, format!("EMBEDDED_METADATA {what}")))?;
        let Tag::Element { name: element, attributes, closing, empty } = tag else { continue };
        if closing {
            if open.pop() != Some(element) {
                return bad(here, format!("EMBEDDED_METADATA: `</{element}>` closes nothing"));
            }
            inside &= open.contains(&"kernel");
            continue;
        }
        let attribute = |wanted: &str| attributes.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        let numbered = |wanted: &str| {
            attribute(wanted).map(|text| number(text, wanted)).transpose().map_err(|what| at(here, what))
        };
        if element == "kernel" && open == ["project", "platform", "device", "core"] {
            let name = attribute("name").unwrap_or("");
            if kernels.iter().any(|kernel| kernel.name == name) {
                return bad(here, format!("EMBEDDED_METADATA describes kernel `{name}` twice"));
            }
            inside = !empty;
            kernels.push(Kernel { name: name.to_owned(), id: None, functional: 0, arguments: Vec::new() });
        } else if let (true, Some(kernel)) = (inside, kernels.last_mut()) {
            match element {
                "extended-data" => {
                    kernel.id = numbered("dpu_kernel_id")?;
                    let text = attribute("functional");
                    kernel.functional = text.map_or(Ok(0), functional).map_err(|what| at(here, what))?;
                }
                "arg" => kernel.arguments.push(Argument {
                    id: numbered("id")?.unwrap_or(0),
                    name: attribute("name").unwrap_or("").to_owned(),
                    size: numbered("size").unwrap_or(None),
                    offset: numbered("offset").unwrap_or(None),
                }),
                _ => {}
            }
        }
        if !empty {
            open.push(element);
            if open.len() > DEEPEST {
                return bad(here, format!("EMBEDDED_METADATA nests deeper than {DEEPEST}"));
            }
        }
    }
    match open.last() {
        Some(element) => bad(end, format!("EMBEDDED_METADATA: `<{element}>` is not closed")),
        None => Ok(kernels),
    }
}

enum Tag<'t> {
    Element { name: &'t str, attributes: Vec<(&'t str, &'t str)>, closing: bool, empty: bool },
    Other,
}

/// Takes one tag off the front of `rest`, which begins with `<`.
fn tag<'t>(rest: &mut &'t str) -> Result<Tag<'t>, String> {
    let cut = || "ends inside this tag".to_owned();
    for (begin, end) in [("<!--", "-->"), ("<?", "?>"), ("<![CDATA[", "]]>")] {
        if rest.starts_with(begin) {
            let at = rest.find(end).ok_or_else(cut)?;
            *rest = &rest[at + end.len()..];
            return Ok(Tag::Other);
        }
    }
    if rest.starts_with("<!") {
        return Err("has a document type or entity declaration".to_owned());
    }
    let closing = rest.starts_with("</");
    let mut text = &rest[if closing { 2 } else { 1 }..];
    let name_end = text.find(|c: char| c.is_whitespace() || c == '>' || c == '/').ok_or_else(cut)?;
    let name = &text[..name_end];
    if name.is_empty() {
        return Err("has a tag without a name".to_owned());
    }
    text = &text[name_end..];
    let mut attributes = Vec::new();
    loop {
        text = text.trim_start();
        if let Some(after) = text.strip_prefix("/>") {
            *rest = after;
            return Ok(Tag::Element { name, attributes, closing, empty: true });
        }
        if let Some(after) = text.strip_prefix('>') {
            *rest = after;
            return Ok(Tag::Element { name, attributes, closing, empty: false });
        }
        let equals = text.find('=').ok_or_else(cut)?;
        let key = text[..equals].trim_end();
        let value = text[equals + 1..].trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let quote = quote.ok_or_else(|| format!("has an attribute, `{key}`, that is not in quotes"))?;
        let end = value[1..].find(quote).ok_or_else(cut)?;
        attributes.push((key, &value[1..=end]));
        text = &value[end + 2..];
    }
}

/// A hexadecimal (`0x`) or decimal number of at most 16 bits.
fn number(text: &str, what: &str) -> Result<u16, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{what} `{text}`; expected a number of 16 bits"))
}

/// `functional` is a number, or the word that XRT's tools print for it.
fn functional(text: &str) -> Result<u8, String> {
    match text {
        "DPU" => Ok(0),
        "PrePost" => Ok(1),
        _ => Ok(number(text, "functional")?.min(255) as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"<?xml version="1.0"?>
<project name="p"><platform><device><core><!-- a > b -->
 <kernel name="OTHER"><extended-data dpu_kernel_id="0x900" functional="1"/></kernel>
 <kernel name='MLIR_AIE' type="dpu">
  <extended-data subtype="1" functional="0" dpu_kernel_id="0x901"/>
  <arg id="0" name="opcode" size="0x8" offset="0"/><arg id="1"/><arg id="2"/><arg id="3"/><arg id="4"/>
  <instance name="MLIRAIE"/>
 </kernel></core></device></platform></project>
"#;

    fn read(text: &str) -> Result<Vec<Kernel>, XclbinError> {
        kernels(Bytes { bytes: text.as_bytes(), base: 1000, what: "EMBEDDED_METADATA" })
    }

    #[test]
    fn finds_the_kernels() {
        let found = read(GOOD).unwrap();
        let short: Vec<_> = found.iter().map(|k| (k.name.as_str(), k.id, k.functional, k.buffers())).collect();
        assert_eq!(short, [("OTHER", Some(0x900), 1, 0), ("MLIR_AIE", Some(0x901), 0, 2)]);
        let opcode = Argument { id: 0, name: "opcode".to_owned(), size: Some(8), offset: Some(0) };
        assert_eq!(found[1].arguments[0], opcode);
    }

    #[test]
    fn refusals() {
        let message = |text: &str| read(text).unwrap_err().0;
        assert!(message("<!DOCTYPE x [<!ENTITY a 'b'>]><x/>").contains("document type"));
        assert!(message("<project>").contains("`<project>` is not closed"));
        assert_eq!(message("<a></b>"), "byte 1003: EMBEDDED_METADATA: `</b>` closes nothing");
        assert!(message("<a b").contains("ends inside this tag"));
        assert!(message("<a b=c>").contains("not in quotes"));
        assert!(message(&"<a>".repeat(100)).contains("nests deeper"));
        assert!(message(&GOOD.replace("0x901", "0x10901")).contains("expected a number of 16 bits"));
        assert!(message(&GOOD.replace("OTHER", "MLIR_AIE")).contains("twice"));
    }

    #[test]
    fn no_cut_text_panics() {
        for end in 0..GOOD.len() {
            let place = read(&GOOD[..end]).err().map(|error| error.0);
            assert!(place.as_ref().is_none_or(|text| text.starts_with("byte 1")), "{end}: {place:?}");
        }
    }
}
