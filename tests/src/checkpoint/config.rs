//! The JSON files that say what a model is.

use super::{Form, Size};
use serde_json::{Value, json};

pub(super) fn config(size: &Size, form: Form) -> Value {
    let mut text = json!({
        "attention_bias": false,
        "attn_output_gate": true,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": size.linear_dim,
        "linear_num_key_heads": size.key_heads,
        "linear_num_value_heads": size.value_heads,
        "linear_value_head_dim": size.linear_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262_144,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.kv_heads,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": size.tied,
        "eos_token_id": size.words,
        "vocab_size": size.vocab,
    });
    let (theta, partial) = (1e7, 0.25);
    if form.old {
        text["full_attention_interval"] = json!(size.interval);
        text["rope_theta"] = json!(theta);
        text["partial_rotary_factor"] = json!(partial);
        text["rope_scaling"] = json!({"mrope_section": size.sections, "mrope_interleaved": true, "type": "mrope"});
    } else {
        let kind = |layer: usize| {
            if (layer + 1).is_multiple_of(size.interval) { "full_attention" } else { "linear_attention" }
        };
        text["layer_types"] = (0..size.layers).map(kind).collect();
        text["rope_parameters"] = json!({
            "mrope_interleaved": true, "mrope_section": size.sections, "partial_rotary_factor": partial,
            "rope_theta": theta, "rope_type": "default",
        });
    }
    let tower = &size.tower;
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": size.words + 12,
        "video_token_id": size.words + 13,
        "vision_start_token_id": size.words + 9,
        "vision_end_token_id": size.words + 10,
        "tie_word_embeddings": size.tied,
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": tower.depth,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": tower.hidden,
            "in_channels": 3,
            "intermediate_size": tower.intermediate,
            "model_type": "qwen3_5_vision",
            "num_heads": tower.heads,
            "num_position_embeddings": tower.side * tower.side,
            "out_hidden_size": size.hidden,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    })
}

pub(super) fn preprocessor() -> Value {
    json!({
        "size": {"longest_edge": 1_048_576, "shortest_edge": 65_536},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1.0 / 255.0,
        "resample": 3,
        "do_convert_rgb": true,
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast"
    })
}
