"""Writes a training state as a Hugging Face checkpoint.

    python checkpoint.py CHECKPOINT [STATE]

CHECKPOINT already holds the tokenizer; without STATE the weights are those of an untrained model.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model import Config, Model
from tokens import ID

# Any picture becomes about 128 x 128: exactly that when it is square.
PIXELS = 16384
FLOAT32 = ("A_log", "linear_attn.norm.weight")


def to_hf(m):
    out = {}
    for k, v in m.state_dict().items():
        if k == "visual.patch.weight":
            # A picture is two equal frames to the patch embedding: each gets half.
            out["model.visual.patch_embed.proj.weight"] = (v.view(-1, 3, 1, 16, 16) * 0.5).expand(-1, -1, 2, -1, -1)
        elif k == "visual.patch.bias":
            out["model.visual.patch_embed.proj.bias"] = v
        else:
            out["model." + k] = v
    return {k: v.detach().to(torch.float32 if k.endswith(FLOAT32) else torch.bfloat16).contiguous() for k, v in out.items()}


def load(folder):
    """The model with the checkpoint's weights, in float32."""
    m, state = Model(Config), {}
    for k, v in load_file(str(Path(folder) / "model.safetensors")).items():
        k, v = k.removeprefix("model."), v.float()
        if k == "visual.patch_embed.proj.weight":
            k, v = "visual.patch.weight", v.sum(2).flatten(1)
        state[k.replace("patch_embed.proj", "patch")] = v
    m.load_state_dict(state)
    return m.eval()


def config():
    c = Config
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": ID["<|image_pad|>"],
        "video_token_id": ID["<|video_pad|>"],
        "vision_start_token_id": ID["<|vision_start|>"],
        "vision_end_token_id": ID["<|vision_end|>"],
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "vocab_size": c.vocab,
            "hidden_size": c.hidden,
            "intermediate_size": c.inner,
            "num_hidden_layers": len(c.layers),
            "layer_types": [{"lin": "linear_attention", "att": "full_attention"}[k] for k in c.layers],
            "num_attention_heads": c.heads,
            "num_key_value_heads": c.kv_heads,
            "head_dim": c.head_dim,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-06,
            "initializer_range": 0.02,
            "max_position_embeddings": 4096,
            "linear_conv_kernel_dim": c.conv,
            "linear_key_head_dim": c.lin_key,
            "linear_num_key_heads": c.lin_heads,
            "linear_num_value_heads": c.lin_heads,
            "linear_value_head_dim": c.lin_value,
            "rope_parameters": {"mrope_interleaved": True, "mrope_section": c.sections, "partial_rotary_factor": c.rope_dim / c.head_dim, "rope_theta": c.rope_theta, "rope_type": "default"},
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": ID["<|endoftext|>"],
            "pad_token_id": None,
        },
        "vision_config": {
            "model_type": "qwen3_5_vision",
            "depth": c.v_depth,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": c.v_hidden,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": c.v_inner,
            "num_heads": c.v_heads,
            "num_position_embeddings": c.v_positions,
            "out_hidden_size": c.hidden,
            "patch_size": 16,
            "rope_parameters": {"rope_theta": c.v_theta, "rope_type": "axial"},
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def save(m, folder):
    folder = Path(folder)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, "padding_side": "left", "clean_up_tokenization_spaces": False, "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace"}
    generation = {"eos_token_id": [ID["<|im_end|>"], ID["<|endoftext|>"]], "pad_token_id": ID["<|endoftext|>"], "do_sample": False}
    picture = {"size": {"longest_edge": PIXELS, "shortest_edge": PIXELS}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255, "resample": 3, "do_convert_rgb": True,
               "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"}
    for name, value in [("config", config()), ("tokenizer_config", tokenizer), ("generation_config", generation), ("preprocessor_config", picture)]:
        (folder / (name + ".json")).write_text(json.dumps(value, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text((Path(__file__).parent / "chat_template.jinja").read_text())
    save_file(dict(sorted(to_hf(m).items())), str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    torch.manual_seed(1)
    m = Model(Config)
    if len(sys.argv) > 2:
        m.load_state_dict(torch.load(sys.argv[2])["model"])
    else:
        m.start_matched()
    save(m, sys.argv[1])
