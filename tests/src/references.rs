//! Reference runs of a bundle's own weights, by the plain forward: what `check` compares with where a format changes what
//! the model says.

use std::io::Write as _;
use std::path::Path;

use runtime::bundle::Bundle;
use runtime::chat::{Tokenizer, prompt};
use serde_json::{Map, Value, json};

use crate::forward::Forward;

/// Logits that are kept of a step.
const TOP: usize = 16;

/// Writes a folder for `ExportOptions::refs`: for each message a prompt and the `steps` tokens that the bundle's weights
/// choose after it.
///
/// # Errors
/// A bundle that cannot be computed with, or what the file system refused.
pub fn write(bundle: &Bundle, messages: &[&str], steps: usize, folder: &Path) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let json = bundle.tokenizer_json().map_err(|error| said(&error))?;
    let tokenizer = Tokenizer::from_json(&json).map_err(|error| said(&error))?;
    std::fs::create_dir_all(folder).map_err(|error| said(&error))?;
    let (mut cases, mut texts) = (Vec::new(), Vec::new());
    for (number, message) in messages.iter().enumerate() {
        let text = prompt(None, &[], message, false);
        let ids = tokenizer.encode(&text).map_err(|error| said(&error))?;
        let plain = tokenizer.encode(message).map_err(|error| said(&error))?;
        texts.push(json!({"text": message, "ids": plain}));
        let run = Run::new(bundle, &ids, steps)?;
        let (name, file) = (format!("text{number}"), format!("text{number}.safetensors"));
        run.write(&ids, &folder.join(&file)).map_err(|error| said(&error))?;
        cases.push(json!({"name": name, "file": file, "message": message, "thinking": false, "images": []}));
    }
    let index = json!({"cases": cases, "tokenizer": texts, "images": {}});
    std::fs::write(folder.join("index.json"), index.to_string()).map_err(|error| said(&error))
}

/// What was chosen, and what else might have been.
struct Run {
    tokens: Vec<u32>,
    top_ids: Vec<u32>,
    top_logits: Vec<f32>,
}

impl Run {
    fn new(bundle: &Bundle, prompt: &[u32], steps: usize) -> Result<Self, String> {
        let forward = Forward::new(bundle);
        let mut run = Self { tokens: Vec::new(), top_ids: Vec::new(), top_logits: Vec::new() };
        let mut ids = prompt.to_vec();
        for _ in 0..steps {
            let positions: Vec<[u32; 3]> = (0..ids.len() as u32).map(|at| [at; 3]).collect();
            let logits = forward.logits(&ids, &positions, &[], ids.len() - 1).map_err(|error| error.to_string())?;
            let logits = logits.last().ok_or("a forward without logits")?;
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            // The lowest number where logits are equal, as the greedy choice has it.
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            run.tokens.push(order[0]);
            ids.push(order[0]);
            run.top_logits.extend(order[..TOP].iter().map(|id| logits[*id as usize]));
            run.top_ids.extend(&order[..TOP]);
        }
        Ok(run)
    }

    /// `safetensors`: the header's length, the header, the tensors.
    fn write(&self, prompt: &[u32], path: &Path) -> std::io::Result<()> {
        let words = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let logits = self.top_logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let steps = self.tokens.len();
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in [
            ("ids", "I32", vec![prompt.len()], words(prompt)),
            ("tokens", "I32", vec![steps], words(&self.tokens)),
            ("top_ids", "I32", vec![steps, TOP], words(&self.top_ids)),
            ("top_logits", "F32", vec![steps, TOP], logits),
        ] {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(name.into(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend(bytes);
        }
        let header = Value::Object(header).to_string();
        let mut file = std::fs::File::create(path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        file.write_all(&data)
    }
}
