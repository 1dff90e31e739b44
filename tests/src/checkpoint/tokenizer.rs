//! A byte-level tokenizer of Qwen3.5's sort, of any number of words.

use serde_json::{Map, Value, json};

/// Added tokens in the real order.
const ADDED: [&str; 26] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];
/// Those of them that show in decoded text.
const SHOWN: [&str; 6] = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"];

/// The first words after the bytes; pairs of letters follow, then triples.
const FIRST: [(&str, &str); 4] = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("i", "n")];
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// GPT-2's name for each byte: itself where it prints, else a letter from U+0100 on.
fn symbols() -> Vec<char> {
    let mut spare = 0x100_u32..;
    (0..=u8::MAX)
        .map(|byte| match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => spare.next().and_then(char::from_u32).unwrap_or('\u{fffd}'),
        })
        .collect()
}

/// Words in the order of their ids, and the merges that make them of one another.
struct Words {
    vocab: Map<String, Value>,
    merges: Vec<[String; 2]>,
    most: usize,
}

impl Words {
    /// The word that the two make, if it is new and there is room for it.
    fn merge(&mut self, left: &str, right: &str) -> Option<String> {
        let word = format!("{left}{right}");
        if self.vocab.len() >= self.most || self.vocab.contains_key(&word) {
            return None;
        }
        self.vocab.insert(word.clone(), json!(self.vocab.len()));
        self.merges.push([left.to_owned(), right.to_owned()]);
        Some(word)
    }
}

pub(super) fn tokenizer(words: usize) -> Value {
    let vocab = symbols().iter().enumerate().map(|(byte, symbol)| (symbol.to_string(), json!(byte))).collect();
    let mut all = Words { vocab, merges: Vec::new(), most: words };
    for (left, right) in FIRST {
        all.merge(left, right);
    }
    let letters: Vec<String> = ('a'..='z').chain('A'..='Z').chain('\u{100}'..='\u{120}').map(String::from).collect();
    let mut heads = letters.clone();
    while all.vocab.len() < words {
        let mut made = Vec::new();
        for head in &heads {
            made.extend(letters.iter().filter_map(|tail| all.merge(head, tail)));
        }
        heads = made;
    }
    let added: Vec<Value> = ADDED
        .iter()
        .enumerate()
        .map(|(index, content)| {
            json!({
                "id": words + index, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": !SHOWN.contains(content)
            })
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": all.vocab, "merges": all.merges
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_words_as_asked_for_and_ids_without_gaps() {
        for words in [260, 2000, 20_000] {
            let tokenizer = tokenizer(words);
            let mut ids: Vec<u64> =
                tokenizer["model"]["vocab"].as_object().unwrap().values().map(|id| id.as_u64().unwrap()).collect();
            ids.sort_unstable();
            assert!(ids.iter().copied().eq(0..words as u64));
            assert_eq!(tokenizer["added_tokens"][1]["id"], words + 1);
        }
    }
}
