//! The kernels that the EMBEDDED_METADATA section describes.
//!
//! A small reader for the XML that the tools write: elements, attributes in quotes, comments, a declaration. No
//! document type, no entities.

use super::{XclbinError, bad};

const LONGEST: usize = 1 << 20;
const DEEPEST: usize = 64;

/// A kernel as the XML describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) id: u16,
    pub(super) functional: u8,
    pub(super) buffers: usize,
}

/// Finds the kernel of this name.
pub(super) fn kernel(section: &[u8], name: &str) -> Result<Kernel, XclbinError> {
    if section.len() > LONGEST {
        return bad(format!("EMBEDDED_METADATA of {} bytes; expected at most {LONGEST}", section.len()));
    }
    let text = std::str::from_utf8(section).map_err(|_| XclbinError("EMBEDDED_METADATA is not UTF-8".to_owned()))?;
    let mut open: Vec<&str> = Vec::new();
    let mut names = Vec::new();
    let mut inside = false;
    let mut found: Option<(Option<u16>, u8, usize)> = None;
    let mut rest = text.trim_end_matches('\0');
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        let tag = tag(&mut rest)?;
        let Tag::Element { name: element, attributes, closing, empty } = tag else { continue };
        if closing {
            if open.pop() != Some(element) {
                return bad(format!("EMBEDDED_METADATA: `</{element}>` closes nothing"));
            }
            inside &= open.contains(&"kernel");
            continue;
        }
        let attribute = |wanted: &str| attributes.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value);
        if element == "kernel" && open == ["project", "platform", "device", "core"] {
            let this = attribute("name").unwrap_or("");
            names.push(this);
            inside = this == name && !empty;
            if this == name {
                if found.is_some() {
                    return bad(format!("EMBEDDED_METADATA describes kernel `{name}` twice"));
                }
                found = Some((None, 0, 0));
            }
        } else if let (true, Some(kernel)) = (inside, found.as_mut()) {
            match element {
                "extended-data" => {
                    kernel.0 = attribute("dpu_kernel_id").map(|text| number(text, "dpu_kernel_id")).transpose()?;
                    kernel.1 = attribute("functional").map_or(Ok(0), functional)?;
                }
                // Arguments 0 to 2 are opcode, instructions and their length.
                "arg" => {
                    let id: u16 = number(attribute("id").unwrap_or("0"), "an argument's id")?;
                    kernel.2 += usize::from(id >= 3);
                }
                _ => {}
            }
        }
        if !empty {
            open.push(element);
            if open.len() > DEEPEST {
                return bad(format!("EMBEDDED_METADATA nests deeper than {DEEPEST}"));
            }
        }
    }
    if let Some(element) = open.last() {
        return bad(format!("EMBEDDED_METADATA: `<{element}>` is not closed"));
    }
    match found {
        Some((Some(id), functional, buffers)) => Ok(Kernel { id, functional, buffers }),
        Some((None, ..)) => bad(format!("kernel `{name}` has no dpu_kernel_id")),
        None => bad(format!("no kernel `{name}`; there is: {}", names.join(", "))),
    }
}

enum Tag<'t> {
    Element { name: &'t str, attributes: Vec<(&'t str, &'t str)>, closing: bool, empty: bool },
    Other,
}

/// Takes one tag off the front of `rest`, which begins with `<`.
fn tag<'t>(rest: &mut &'t str) -> Result<Tag<'t>, XclbinError> {
    let cut = || XclbinError("EMBEDDED_METADATA ends inside a tag".to_owned());
    for (begin, end) in [("<!--", "-->"), ("<?", "?>"), ("<![CDATA[", "]]>")] {
        if rest.starts_with(begin) {
            let at = rest.find(end).ok_or_else(cut)?;
            *rest = &rest[at + end.len()..];
            return Ok(Tag::Other);
        }
    }
    if rest.starts_with("<!") {
        return bad("EMBEDDED_METADATA has a document type or entity declaration");
    }
    let closing = rest.starts_with("</");
    let mut text = &rest[if closing { 2 } else { 1 }..];
    let name_end = text.find(|c: char| c.is_whitespace() || c == '>' || c == '/').ok_or_else(cut)?;
    let name = &text[..name_end];
    if name.is_empty() {
        return bad("EMBEDDED_METADATA has a tag without a name");
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
        let quote =
            quote.ok_or_else(|| XclbinError(format!("EMBEDDED_METADATA: attribute `{key}` is not in quotes")))?;
        let end = value[1..].find(quote).ok_or_else(cut)?;
        attributes.push((key, &value[1..=end]));
        text = &value[end + 2..];
    }
}

/// A hexadecimal (`0x`) or decimal number of at most 16 bits.
fn number(text: &str, what: &str) -> Result<u16, XclbinError> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| XclbinError(format!("{what} `{text}`; expected a number of 16 bits")))
}

/// `functional` is a number, or the word that XRT's tools print for it.
fn functional(text: &str) -> Result<u8, XclbinError> {
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
  <arg id="0" name="opcode"/><arg id="1"/><arg id="2"/><arg id="3"/><arg id="4"/>
  <instance name="MLIRAIE"/>
 </kernel></core></device></platform></project>
"#;

    #[test]
    fn finds_the_kernel() {
        let found = kernel(GOOD.as_bytes(), "MLIR_AIE").unwrap();
        assert_eq!(found, Kernel { id: 0x901, functional: 0, buffers: 2 });
        assert_eq!(kernel(GOOD.as_bytes(), "OTHER").unwrap().functional, 1);
    }

    #[test]
    fn refusals() {
        let message = |text: &str, name: &str| kernel(text.as_bytes(), name).unwrap_err().0;
        assert_eq!(message(GOOD, "X"), "no kernel `X`; there is: OTHER, MLIR_AIE");
        assert!(message("<!DOCTYPE x [<!ENTITY a 'b'>]><x/>", "X").contains("document type"));
        assert!(message("<project>", "X").contains("`<project>` is not closed"));
        assert!(message("<a></b>", "X").contains("`</b>` closes nothing"));
        assert!(message("<a b", "X").contains("ends inside a tag"));
        assert!(message("<a b=c>", "X").contains("not in quotes"));
        assert!(message(&"<a>".repeat(100), "X").contains("nests deeper"));
        assert!(message(&GOOD.replace("0x901", "0x10901"), "MLIR_AIE").contains("expected a number of 16 bits"));
        assert!(message(&GOOD.replace("OTHER", "MLIR_AIE"), "MLIR_AIE").contains("twice"));
    }

    #[test]
    fn no_cut_text_panics() {
        for end in 0..GOOD.len() {
            let _ = kernel(GOOD.as_bytes().get(..end).unwrap(), "MLIR_AIE");
        }
    }
}
