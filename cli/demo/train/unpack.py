"""Reads a demo bundle's packed weights back into a training state.

    python unpack.py BUNDLE STATE

STATE is what `train.py --from` and `checkpoint.py` take. The weights are the rounded ones of the bundle, so packing them again
loses next to nothing more; the label heads, which no bundle has, start anew. Only bundles as `qwen35-direct export` writes them for
this model: text in bfp16, vision in int8 with a factor a channel, every product in one piece.
"""
import sys
from pathlib import Path

import numpy as np
import torch

import pictures
from model import Config, Labels, Model

BLOCK = 9  # an exponent and eight mantissas
BIAS = 9216  # bytes of the bias chunk in front of each 64 outputs
PATCH = 768


class Bundle:
    def __init__(self, folder):
        self.bytes = np.fromfile(Path(folder) / "tensors.bin", np.uint8)
        self.known = {}
        for line in (Path(folder) / "tensors.txt").read_text().splitlines():
            name, _, shape, first, size = line.split()
            self.known[name] = [int(n) for n in shape.split(",")], int(first), int(size)

    def raw(self, name):
        _, first, size = self.known[name]
        return self.bytes[first : first + size]

    def plain(self, name):
        return torch.from_numpy(self.raw(name).view(np.float32).copy()).view(self.known[name][0])

    def stream(self, name, inputs, bias=False):
        """A product's weight [outputs, inputs], and its bias."""
        column = self.raw(name).reshape(-1, bias * BIAS + inputs * 8 * BLOCK)
        # 64 outputs: slices of 128 inputs, groups of 8 outputs, 8 inputs, one output.
        w = decode(column[:, bias * BIAS :].reshape(len(column), -1, 8, 16, 8, BLOCK))
        w = w.transpose(0, 2, 4, 1, 3, 5).reshape(-1, inputs)
        b = np.ascontiguousarray(column[:, : 128 * bias]).view(np.uint16).astype(np.uint32) << 16
        return torch.from_numpy(w.copy()), torch.from_numpy(b.view(np.float32).flatten())

    def rows(self, name, inputs):
        """The head's weight: groups of 8 rows, 8 inputs, one row."""
        w = decode(self.raw(name).reshape(-1, inputs // 8, 8, BLOCK))
        return torch.from_numpy(w.transpose(0, 2, 1, 3).reshape(-1, inputs).copy())

    def scaled(self, name, inputs, part=""):
        """A product of the tower: the device adds bias / factor, the host multiplies."""
        (w, b), factor = self.stream(name + part, -(-inputs // 512) * 512, True), self.plain(name + ".f")
        return w[:, :inputs] * factor[:, None], b * factor


def decode(blocks):
    mantissas = np.ascontiguousarray(blocks[..., 1:]).view(np.int8).astype(np.float32)
    return np.ldexp(mantissas, blocks[..., :1].astype(np.int32) - 133)


def state(folder):
    c, b, out = Config, Bundle(folder), {}

    def put(theirs, w, *parts):
        """Rows of one packed weight as several matrices."""
        for name, part in zip(parts or [""], w.split([own[theirs + p + ".weight"].shape[0] for p in parts]) if parts else [w]):
            out[theirs + name + ".weight"] = part

    own = Model(c).state_dict()
    for i, kind in enumerate(c.layers):
        to, g, h = f"language_model.layers.{i}.", f"l{i}.g.", f"l{i}.h."
        joined, _ = b.stream(g + "in", c.hidden)
        if kind == "lin":
            put(to + "linear_attn.", joined, "in_proj_qkv", "in_proj_z")
            put(to + "linear_attn.", b.plain(h + "ba"), "in_proj_b", "in_proj_a")
            put(to + "linear_attn.conv1d", b.plain(h + "conv").unsqueeze(1))
            put(to + "linear_attn.norm", b.plain(h + "norm"))
            put(to + "linear_attn.out_proj", b.stream(g + "o", c.lin_heads * c.lin_value)[0])
            out[to + "linear_attn.A_log"] = (-b.plain(h + "A")).log()
            out[to + "linear_attn.dt_bias"] = b.plain(h + "dt_bias")
        else:
            put(to + "self_attn.", joined, "q_proj", "k_proj", "v_proj")
            put(to + "self_attn.q_norm", b.plain(h + "q_norm"))
            put(to + "self_attn.k_norm", b.plain(h + "k_norm"))
            put(to + "self_attn.o_proj", b.stream(g + "o", c.heads * c.head_dim)[0])
        # Gate and up take turns, 32 rows each.
        pairs = b.stream(g + "gu", c.hidden)[0].view(-1, 2, 32, c.hidden)
        put(to + "mlp.gate_proj", pairs[:, 0].reshape(-1, c.hidden))
        put(to + "mlp.up_proj", pairs[:, 1].reshape(-1, c.hidden))
        put(to + "mlp.down_proj", b.stream(g + "down0", c.hidden)[0][:, : c.inner])
        put(to + "input_layernorm", b.plain(h + "ln1"))
        put(to + "post_attention_layernorm", b.plain(h + "ln2"))
    put("language_model.norm", b.plain("ln_f"))
    put("language_model.embed_tokens", b.rows("head0", c.hidden)[: c.vocab])

    def both(theirs, w, bias):
        out["visual." + theirs + ".weight"], out["visual." + theirs + ".bias"] = w, bias

    out["visual.pos_embed.weight"] = b.plain("vis.pos")
    both("patch", *b.scaled("vis.patch", PATCH))
    for i in range(c.v_depth):
        ours, theirs = f"vis.b{i}.", f"blocks.{i}."
        for n in "12":
            both(theirs + "norm" + n, b.plain(f"{ours}ln{n}_w"), b.plain(f"{ours}ln{n}_b"))
        both(theirs + "attn.qkv", *b.scaled(ours + "qkv", c.v_hidden))
        both(theirs + "attn.proj", *b.scaled(ours + "proj", c.v_hidden))
        both(theirs + "mlp.linear_fc1", *b.scaled(ours + "fc1", c.v_hidden))
        both(theirs + "mlp.linear_fc2", *b.scaled(ours + "fc2", c.v_inner, ".0"))
    both("merger.norm", b.plain("vis.m_ln_w"), b.plain("vis.m_ln_b"))
    both("merger.linear_fc1", *b.scaled("vis.m1", 4 * c.v_hidden, ".0"))
    both("merger.linear_fc2", *b.scaled("vis.m2", 4 * c.v_hidden, ".0"))
    return out


if __name__ == "__main__":
    torch.manual_seed(1)
    m = Model(Config)
    m.load_state_dict(state(sys.argv[1]))
    heads = Labels(Config, len(pictures.SHAPES), len(pictures.COLOUR_NAMES), len(pictures.BACKGROUNDS))
    torch.save(dict(model=m.state_dict(), labels=heads.state_dict()), sys.argv[2])
