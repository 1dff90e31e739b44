//! Which `tokenizer.json` is Qwen3.5's sort, and its table of bytes.
//!
//! The file can describe a great many tokenizers. Everything here that depends on how one behaves (the stream of text
//! that decodes token by token, the cutting of special tokens) holds for one sort only, so any other is refused, by
//! the name of what differs.

use serde_json::Value;

/// How Qwen3.5 cuts text into words. Its predecessors lack `\p{M}` among the letters.
pub(super) const SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// What the runtime keeps of an accepted file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    /// All bytes, token after token. A special token has none.
    bytes: Vec<u8>,
    /// Where each token's bytes begin, and where the last one's end.
    starts: Vec<u32>,
}

impl Tokens {
    /// The bytes that a token adds to a text; none for special tokens and ids that no token has.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(&from), Some(&to)) => &self.bytes[from as usize..to as usize],
            _ => &[],
        }
    }

    /// Tokens there are; ids are dense.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }
}

/// Checks the file and takes its tokens out.
pub(super) fn accept(json: &[u8]) -> Result<Tokens, String> {
    let root: Value = serde_json::from_slice(json).map_err(|e| format!("not JSON: {e}"))?;
    let root = root.as_object().ok_or("not a JSON object")?;
    let get = |name: &str| root.get(name).unwrap_or(&Value::Null);

    field(get("normalizer"), "normalizer", &[("type", Value::from("NFC"))])?;
    pre_tokenizer(get("pre_tokenizer"))?;
    for name in ["truncation", "padding"] {
        if !get(name).is_null() {
            return Err(format!("`{name}` is set; the whole text is wanted"));
        }
    }
    let post = get("post_processor");
    if !post.is_null() && post["type"] != "ByteLevel" {
        return Err(format!("post_processor is {}; it would add tokens", kind(post)));
    }
    model(get("model"))?;
    table(&get("model")["vocab"], get("added_tokens"))
}

fn pre_tokenizer(value: &Value) -> Result<(), String> {
    field(value, "pre_tokenizer", &[("type", Value::from("Sequence"))])?;
    let [split, bytes] = value["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice) else {
        return Err("pre_tokenizer is not a Split and a ByteLevel".into());
    };
    let wanted = [("type", "Split".into()), ("behavior", "Isolated".into()), ("invert", false.into())];
    field(split, "pre_tokenizer 0", &wanted)?;
    if split["pattern"]["Regex"] != SPLIT {
        return Err("the pattern that splits words is not Qwen3.5's".into());
    }
    let wanted = [("type", "ByteLevel".into()), ("add_prefix_space", false.into()), ("use_regex", false.into())];
    field(bytes, "pre_tokenizer 1", &wanted)
}

fn model(value: &Value) -> Result<(), String> {
    field(value, "model", &[("type", Value::from("BPE"))])?;
    for name in ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"] {
        if !value[name].is_null() && value[name] != "" {
            return Err(format!("model.{name} is {}, wanted none", value[name]));
        }
    }
    for name in ["byte_fallback", "ignore_merges", "fuse_unk"] {
        if !value[name].is_null() && value[name] != false {
            return Err(format!("model.{name} is {}, wanted false", value[name]));
        }
    }
    Ok(())
}

/// Ids 0..n, each once, from the vocabulary and the added tokens together.
fn table(vocab: &Value, added: &Value) -> Result<Tokens, String> {
    let vocab = vocab.as_object().ok_or("model.vocab is missing")?;
    let empty = Vec::new();
    let added = added.as_array().unwrap_or(&empty);
    let most = vocab.len() + added.len();
    let mut found: Vec<Option<Vec<u8>>> = vec![None; most];
    let mut place = |id: &Value, bytes: Vec<u8>, replaces: bool| -> Result<(), String> {
        let slot = id.as_u64().and_then(|id| usize::try_from(id).ok()).and_then(|id| found.get_mut(id));
        let slot = slot.ok_or_else(|| format!("token id {id} leaves a gap: ids must be dense"))?;
        if slot.is_some() && !replaces {
            return Err(format!("token id {id} is there twice"));
        }
        *slot = Some(bytes);
        Ok(())
    };
    for (text, id) in vocab {
        place(id, symbols(text), false)?;
    }
    for token in added {
        let text = token["content"].as_str().ok_or("an added token has no content")?;
        for name in ["normalized", "lstrip", "rstrip", "single_word"] {
            if token[name] != false {
                return Err(format!("added token `{text}` has {name} = {}, wanted false", token[name]));
            }
        }
        let shown = if token["special"] == true { Vec::new() } else { text.as_bytes().to_vec() };
        // An added token may repeat an entry of the vocabulary; it is the same token.
        place(&token["id"], shown, vocab.get(text) == Some(&token["id"]))?;
    }
    let count = found.iter().position(Option::is_none).unwrap_or(found.len());
    if let Some(beyond) = found[count..].iter().position(Option::is_some) {
        return Err(format!("no token has id {count}, but one has {}: ids must be dense", count + beyond));
    }
    let mut tokens = Tokens { bytes: Vec::new(), starts: vec![0] };
    for bytes in found.into_iter().flatten() {
        tokens.bytes.extend(bytes);
        tokens.starts.push(u32::try_from(tokens.bytes.len()).map_err(|_| "more than 4 GB of tokens")?);
    }
    Ok(tokens)
}

fn kind(value: &Value) -> &Value {
    if value.is_object() { &value["type"] } else { value }
}

fn field(value: &Value, name: &str, wanted: &[(&str, Value)]) -> Result<(), String> {
    for (key, wanted) in wanted {
        if value[*key] != *wanted {
            return Err(format!("{name}.{key} is {}, wanted {wanted}", value[*key]));
        }
    }
    Ok(())
}

/// Byte-level BPE writes each byte as one printable character: bytes that print stand for themselves, the other 68
/// are numbered from U+0100 in order.
fn symbols(text: &str) -> Vec<u8> {
    let prints = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        let code = u32::from(c);
        let byte = match u8::try_from(code) {
            Ok(b) => prints(b).then_some(b),
            Err(_) => (0..=255u8).filter(|&b| !prints(b)).nth((code - 256) as usize),
        };
        match byte {
            Some(b) => out.push(b),
            // Not of the alphabet: the reference decoder then shows the token as it is written.
            None => return text.as_bytes().to_vec(),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest file that is accepted.
    fn sound() -> Value {
        serde_json::json!({
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
            "added_tokens": [
                {"id": 2, "content": "<|im_end|>", "normalized": false, "lstrip": false, "rstrip": false,
                 "single_word": false, "special": true},
                {"id": 3, "content": "<think>", "normalized": false, "lstrip": false, "rstrip": false,
                 "single_word": false, "special": false}],
            "model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1}, "merges": []}
        })
    }

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut json = sound();
        change(&mut json);
        accept(&serde_json::to_vec(&json).unwrap()).unwrap_err()
    }

    #[test]
    fn a_sound_file_gives_its_bytes() {
        let tokens = accept(&serde_json::to_vec(&sound()).unwrap()).unwrap();
        assert_eq!(tokens.len(), 4);
        let bytes: Vec<&[u8]> = (0..5).map(|id| tokens.bytes(id)).collect();
        assert_eq!(bytes, [&b"a"[..], b" ", b"", b"<think>", b""]);
        assert_eq!(tokens.bytes(u32::MAX), b"");
    }

    #[test]
    fn everything_that_differs_is_refused_by_name() {
        let cases: [(&str, &str, Value); 12] = [
            ("/normalizer/type", "normalizer.type", "NFKC".into()),
            ("/pre_tokenizer/type", "pre_tokenizer.type", "ByteLevel".into()),
            ("/pre_tokenizer/pretokenizers/0/pattern/Regex", "pattern", SPLIT.replace(r"\p{M}", "").into()),
            ("/pre_tokenizer/pretokenizers/0/behavior", "behavior", "Removed".into()),
            ("/pre_tokenizer/pretokenizers/0/invert", "invert", true.into()),
            ("/pre_tokenizer/pretokenizers/1/add_prefix_space", "add_prefix_space", true.into()),
            ("/pre_tokenizer/pretokenizers/1/use_regex", "use_regex", true.into()),
            ("/model/type", "model.type", "Unigram".into()),
            ("/added_tokens/0/lstrip", "lstrip", true.into()),
            ("/added_tokens/1/normalized", "normalized", true.into()),
            ("/added_tokens/1/id", "dense", 7.into()),
            ("/model/vocab/a", "twice", 1.into()),
        ];
        for (path, word, value) in cases {
            let said = refusal(|json| *json.pointer_mut(path).unwrap() = value);
            assert!(said.contains(word), "{path}: {said}");
        }
        for (name, value) in
            [("byte_fallback", Value::from(true)), ("dropout", 0.1.into()), ("ignore_merges", true.into())]
        {
            let said = refusal(|json| json["model"][name] = value);
            assert!(said.contains(name), "{said}");
        }
        let said = refusal(|json| json["post_processor"] = serde_json::json!({"type": "TemplateProcessing"}));
        assert!(said.contains("post_processor"), "{said}");
        assert!(accept(b"{").is_err());
        assert!(accept(b"[]").is_err());
    }

    /// Anchors of GPT-2's byte alphabet: space, newline, the soft hyphen, and the last of the renumbered bytes.
    #[test]
    fn the_byte_alphabet_is_gpt2s() {
        assert_eq!(symbols("ĠĊ"), b" \n");
        assert_eq!(symbols("Ń"), [0xad]);
        assert_eq!(symbols("ł"), [0xa0]);
        assert_eq!(symbols("é"), [0xe9]);
        assert_eq!(symbols("a\u{3000}"), "a\u{3000}".as_bytes());
    }
}
