//! What a checkpoint's JSON files say about the model.

use std::path::Path;

use serde_json::Value;

use super::{ExportError, json};
use crate::bundle::LayerKind;

/// The language model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Text {
    pub(super) layers: Vec<LayerKind>,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) vocab: usize,
    pub(super) eps: f32,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rope_dim: usize,
    pub(super) rope_theta: f32,
    pub(super) mrope_section: [usize; 3],
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) conv_kernel: usize,
    pub(super) tied: bool,
    pub(super) stop: Vec<u32>,
}

/// The vision tower.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Vision {
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) depth: usize,
    pub(super) heads: usize,
    pub(super) patch: usize,
    pub(super) temporal: usize,
    pub(super) merge: usize,
    pub(super) out: usize,
    pub(super) pos_side: usize,
    pub(super) rope_theta: f32,
    pub(super) image_token: u32,
    pub(super) vision_start: u32,
    pub(super) vision_end: u32,
    pub(super) min_pixels: usize,
    pub(super) max_pixels: usize,
}

/// What a checkpoint holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub(super) text: Text,
    pub(super) vision: Option<Vision>,
}

/// Limits of an image in pixels: a checkpoint's own upper limit may be far above what a context holds.
const MIN_PIXELS: usize = 65_536;
const MAX_PIXELS: usize = 1_048_576;

impl Config {
    /// Reads `config.json`, `generation_config.json` and `preprocessor_config.json` of a checkpoint.
    pub(super) fn read(dir: &Path) -> Result<Self, ExportError> {
        let config = json(&dir.join("config.json"))?;
        let optional = |name: &str| {
            let path = dir.join(name);
            if path.exists() { json(&path) } else { Ok(Value::Null) }
        };
        Self::from_json(&config, &optional("generation_config.json")?, &optional("preprocessor_config.json")?)
    }

    pub(super) fn from_json(config: &Value, generation: &Value, processor: &Value) -> Result<Self, ExportError> {
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or("");
        if !kind.starts_with("qwen3_5") || kind.contains("moe") {
            return Err(ExportError(format!("config.json: model_type `{kind}`; expected a dense qwen3_5 model")));
        }
        let text = text(config, generation)?;
        let vision = match config.get("vision_config") {
            Some(vision) if vision.is_object() => Some(tower(config, vision, processor)?),
            _ => None,
        };
        Ok(Self { text, vision })
    }
}

/// Fields of one object of the configuration.
#[derive(Clone, Copy)]
struct Fields<'a> {
    object: &'a Value,
    /// For messages.
    place: &'static str,
}

impl Fields<'_> {
    fn wrong(self, key: &str, expected: &str) -> ExportError {
        let found = self.object.get(key).map_or("missing".to_owned(), |value| format!("`{value}`"));
        ExportError(format!("{}: `{key}` is {found}; expected {expected}", self.place))
    }

    fn count(self, key: &str) -> Result<usize, ExportError> {
        let value = self.object.get(key).and_then(Value::as_u64).filter(|value| (1..=1 << 24).contains(value));
        value.map(|value| value as usize).ok_or_else(|| self.wrong(key, "a whole number from 1 to 2^24"))
    }

    fn count_or(self, key: &str, default: usize) -> Result<usize, ExportError> {
        if self.object.get(key).is_none_or(Value::is_null) { Ok(default) } else { self.count(key) }
    }

    fn id(self, key: &str) -> Result<u32, ExportError> {
        let value = self.object.get(key).and_then(Value::as_u64).and_then(|value| u32::try_from(value).ok());
        value.ok_or_else(|| self.wrong(key, "a token id"))
    }

    /// Refuses a field that is there with another value than the only one that is implemented.
    fn only(self, key: &str, value: &Value) -> Result<(), ExportError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(found) if found == value => Ok(()),
            Some(_) => Err(self.wrong(key, &value.to_string())),
        }
    }
}

fn text(config: &Value, generation: &Value) -> Result<Text, ExportError> {
    let nested = config.get("text_config").filter(|text| text.is_object());
    let fields = Fields {
        object: nested.unwrap_or(config),
        place: if nested.is_some() { "config.json, text_config" } else { "config.json" },
    };
    fields.only("hidden_act", &Value::from("silu"))?;
    fields.only("attention_bias", &Value::from(false))?;
    fields.only("attn_output_gate", &Value::from(true))?;
    let heads = fields.count("num_attention_heads")?;
    let head_dim = fields.count_or("head_dim", 256)?;
    let (rope_theta, partial, mrope_section) = rope(fields)?;
    let eps = fields.object.get("rms_norm_eps").and_then(Value::as_f64).unwrap_or(1e-6) as f32;
    if !(eps.is_finite() && eps > 0.0) {
        return Err(fields.wrong("rms_norm_eps", "a positive number"));
    }
    // Both levels carry the flag; the outer one is the one that the loading classes look at.
    let tied = [config, fields.object].iter().find_map(|object| object.get("tie_word_embeddings")?.as_bool());
    Ok(Text {
        layers: layers(fields)?,
        hidden: fields.count("hidden_size")?,
        intermediate: fields.count("intermediate_size")?,
        vocab: fields.count("vocab_size")?,
        eps,
        heads,
        kv_heads: fields.count_or("num_key_value_heads", heads)?,
        head_dim,
        rope_dim: (head_dim as f64 * partial) as usize,
        rope_theta,
        mrope_section,
        key_heads: fields.count("linear_num_key_heads")?,
        value_heads: fields.count("linear_num_value_heads")?,
        key_dim: fields.count("linear_key_head_dim")?,
        value_dim: fields.count("linear_value_head_dim")?,
        conv_kernel: fields.count("linear_conv_kernel_dim")?,
        tied: tied.unwrap_or(false),
        stop: stop(generation, fields)?,
    })
}

/// The kinds of the layers: listed, or every nth an attention layer.
fn layers(fields: Fields<'_>) -> Result<Vec<LayerKind>, ExportError> {
    let count = fields.count("num_hidden_layers")?;
    if count > 1024 {
        return Err(fields.wrong("num_hidden_layers", "at most 1024"));
    }
    if let Some(listed) = fields.object.get("layer_types").filter(|listed| !listed.is_null()) {
        let kinds: Option<Vec<LayerKind>> = listed.as_array().and_then(|listed| {
            listed
                .iter()
                .map(|kind| match kind.as_str()? {
                    "linear_attention" => Some(LayerKind::Linear),
                    "full_attention" => Some(LayerKind::Attention),
                    _ => None,
                })
                .collect()
        });
        let expected = "one of linear_attention, full_attention for each of num_hidden_layers";
        return kinds.filter(|kinds| kinds.len() == count).ok_or_else(|| fields.wrong("layer_types", expected));
    }
    let interval = fields.count_or("full_attention_interval", 4)?;
    let kind =
        |index: usize| if (index + 1).is_multiple_of(interval) { LayerKind::Attention } else { LayerKind::Linear };
    Ok((0..count).map(kind).collect())
}

/// Base, rotated share of a head, and sections: under `rope_parameters`, or (older files) beside and in `rope_scaling`.
fn rope(fields: Fields<'_>) -> Result<(f32, f64, [usize; 3]), ExportError> {
    let places: Vec<&Value> = ["rope_parameters", "rope_scaling"]
        .iter()
        .filter_map(|key| fields.object.get(key).filter(|object| object.is_object()))
        .chain([fields.object])
        .collect();
    let find = |key: &str| places.iter().find_map(|object| object.get(key).filter(|value| !value.is_null()));
    let number = |key: &str, default: Option<f64>| {
        let value = find(key).map_or(default, Value::as_f64).filter(|value| value.is_finite() && *value > 0.0);
        value.ok_or_else(|| fields.wrong(key, "a positive number, here or in rope_parameters"))
    };
    for key in ["rope_type", "type"] {
        let kind = find(key).and_then(Value::as_str).unwrap_or("default");
        if !matches!(kind, "default" | "mrope") {
            return Err(ExportError(format!("{}: rope type `{kind}`; expected `default`", fields.place)));
        }
    }
    if find("mrope_interleaved").and_then(Value::as_bool) == Some(false) {
        return Err(ExportError(format!("{}: `mrope_interleaved` is false; expected true", fields.place)));
    }
    let section = match find("mrope_section") {
        None => [0; 3],
        Some(value) => {
            let counts: Option<Vec<usize>> = value
                .as_array()
                .and_then(|counts| counts.iter().map(|count| count.as_u64().map(|count| count as usize)).collect());
            let counts = counts.and_then(|counts| counts.try_into().ok());
            counts.ok_or_else(|| {
                ExportError(format!("{}: `mrope_section` {value}; expected three counts", fields.place))
            })?
        }
    };
    let partial = number("partial_rotary_factor", Some(0.25))?;
    if partial > 1.0 {
        return Err(ExportError(format!("{}: `partial_rotary_factor` {partial}; expected at most 1", fields.place)));
    }
    Ok((number("rope_theta", None)? as f32, partial, section))
}

/// Tokens that end an answer: of the generation's configuration, else of the model's.
fn stop(generation: &Value, fields: Fields<'_>) -> Result<Vec<u32>, ExportError> {
    let place = |object: &Value| object.get("eos_token_id").filter(|value| !value.is_null()).cloned();
    let Some(value) = place(generation).or_else(|| place(fields.object)) else { return Ok(Vec::new()) };
    let id = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
    let ids = match &value {
        Value::Array(ids) => ids.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    };
    ids.ok_or_else(|| ExportError(format!("`eos_token_id` is `{value}`; expected a token id or a list of them")))
}

fn tower(config: &Value, vision: &Value, processor: &Value) -> Result<Vision, ExportError> {
    let outer = Fields { object: config, place: "config.json" };
    let fields = Fields { object: vision, place: "config.json, vision_config" };
    fields.only("hidden_act", &Value::from("gelu_pytorch_tanh"))?;
    fields.only("in_channels", &Value::from(3))?;
    fields.only("deepstack_visual_indexes", &Value::Array(Vec::new()))?;
    let positions = fields.count("num_position_embeddings")?;
    let pos_side = positions.isqrt();
    if pos_side * pos_side != positions {
        return Err(fields.wrong("num_position_embeddings", "a square number"));
    }
    let theta = vision.get("rope_parameters").and_then(|rope| rope.get("rope_theta")).and_then(Value::as_f64);
    let (min_pixels, max_pixels) = pixels(processor)?;
    Ok(Vision {
        hidden: fields.count("hidden_size")?,
        intermediate: fields.count("intermediate_size")?,
        depth: fields.count("depth")?,
        heads: fields.count("num_heads")?,
        patch: fields.count_or("patch_size", 16)?,
        temporal: fields.count_or("temporal_patch_size", 2)?,
        merge: fields.count_or("spatial_merge_size", 2)?,
        out: fields.count("out_hidden_size")?,
        pos_side,
        rope_theta: theta.unwrap_or(10_000.0) as f32,
        image_token: outer.id("image_token_id")?,
        vision_start: outer.id("vision_start_token_id")?,
        vision_end: outer.id("vision_end_token_id")?,
        min_pixels,
        max_pixels,
    })
}

/// Limits of an image, with the upper one capped; pixels must be normalised as the runtime does.
fn pixels(processor: &Value) -> Result<(usize, usize), ExportError> {
    for key in ["image_mean", "image_std"] {
        let halves = |value: &Value| value.as_f64() == Some(0.5);
        let fits = |value: &Value| value.as_array().is_some_and(|values| values.iter().all(halves));
        if processor.get(key).is_some_and(|value| !value.is_null() && !fits(value)) {
            return Err(ExportError(format!(
                "preprocessor_config.json: `{key}` is not 0.5 throughout; nothing else is implemented"
            )));
        }
    }
    let size = processor.get("size").unwrap_or(&Value::Null);
    let limit = |in_size: &str, beside: &str, default: usize| {
        let value = size.get(in_size).or_else(|| processor.get(beside)).filter(|value| !value.is_null());
        let value = value.map_or(Some(default), |value| value.as_u64().map(|value| value as usize));
        value
            .filter(|value| *value > 0)
            .ok_or_else(|| ExportError(format!("preprocessor_config.json: `{in_size}` is not a number of pixels")))
    };
    let max = limit("longest_edge", "max_pixels", MAX_PIXELS)?.min(MAX_PIXELS);
    let min = limit("shortest_edge", "min_pixels", MIN_PIXELS)?.min(max);
    Ok((min, max))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flat() -> Value {
        json!({
            "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248_320,
            "rms_norm_eps": 1e-6, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4, "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
            "rope_scaling": {"mrope_section": [11, 11, 10], "type": "mrope"}, "eos_token_id": 7,
            "tie_word_embeddings": true,
        })
    }

    #[test]
    fn flat_and_nested_spellings_agree() {
        let flat = flat();
        let mut text = flat.clone();
        let inner = text.as_object_mut().unwrap();
        for key in ["rope_theta", "partial_rotary_factor", "rope_scaling", "full_attention_interval", "model_type"] {
            inner.remove(key);
        }
        let (lin, att) = ("linear_attention", "full_attention");
        inner.insert("layer_types".to_owned(), json!([lin, lin, lin, att, lin, lin, lin, att]));
        let rope = json!({"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "rope_type": "default"});
        inner.insert("rope_parameters".to_owned(), rope);
        let nested = json!({"model_type": "qwen3_5", "text_config": text});
        let read = |config: &Value| Config::from_json(config, &Value::Null, &Value::Null).unwrap();
        assert_eq!(read(&flat), read(&nested));
        let text = read(&flat).text;
        assert_eq!((text.rope_dim, text.rope_theta, text.mrope_section), (64, 1e7, [11, 11, 10]));
        assert_eq!(text.layers.iter().filter(|kind| **kind == LayerKind::Attention).count(), 2);
        assert_eq!(text.layers[3], LayerKind::Attention);
        assert!(text.tied);
        assert_eq!(text.stop, [7]);
    }

    #[test]
    fn generation_config_gives_the_stop_tokens() {
        let generation = json!({"eos_token_id": [2002, 2000]});
        let config = Config::from_json(&flat(), &generation, &Value::Null).unwrap();
        assert_eq!(config.text.stop, [2002, 2000]);
    }

    #[test]
    fn the_outer_tie_flag_counts() {
        let config = json!({"model_type": "qwen3_5", "tie_word_embeddings": false, "text_config": flat()});
        assert!(!Config::from_json(&config, &Value::Null, &Value::Null).unwrap().text.tied);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        let message = |key: &str, value: Value| {
            let mut config = flat();
            config.as_object_mut().unwrap().insert(key.to_owned(), value);
            Config::from_json(&config, &Value::Null, &Value::Null).unwrap_err().0
        };
        assert!(message("model_type", json!("llama")).contains("model_type `llama`"));
        assert!(message("model_type", json!("qwen3_5_moe")).contains("dense"));
        assert!(message("hidden_act", json!("relu")).contains("`hidden_act` is `\"relu\"`; expected \"silu\""));
        assert!(message("attention_bias", json!(true)).contains("attention_bias"));
        assert!(message("hidden_size", json!(-1)).contains("`hidden_size` is `-1`; expected a whole number"));
        assert!(message("num_hidden_layers", json!(5000)).contains("at most 1024"));
        assert!(message("layer_types", json!(["x"])).contains("layer_types"));
        assert!(message("rope_scaling", json!({"type": "yarn"})).contains("rope type `yarn`"));
        assert!(message("rope_theta", json!("x")).contains("rope_theta"));
        assert!(message("eos_token_id", json!("x")).contains("eos_token_id"));
    }

    #[test]
    fn pixel_limits() {
        let limits = |processor: Value| pixels(&processor).unwrap();
        assert_eq!(limits(Value::Null), (65_536, 1_048_576));
        assert_eq!(limits(json!({"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}})), (65_536, 1_048_576));
        assert_eq!(limits(json!({"min_pixels": 3136, "max_pixels": 1024})), (1024, 1024));
        assert!(pixels(&json!({"image_mean": [0.4, 0.5, 0.5]})).is_err());
    }
}
