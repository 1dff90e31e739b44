"""Reference runs: what transformers computes from the saved checkpoint, in float32, on the CPU, with eager attention.

    python references.py CHECKPOINT SAMPLES OUT

Writes OUT/index.json, a safetensors file a case (ids, logits of the last prompt row, some greedy tokens with stop ids ignored and
the top 16 logits of each step, positions) and one a picture (pixels, patches, the tower's output), with the picture as PNG.
"""
import argparse
import hashlib
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Qwen2VLImageProcessor, Qwen3_5ForConditionalGeneration

import talk
import tools

STEPS, TOP = 24, 16


def load(folder):
    model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    p = json.loads((Path(folder) / "preprocessor_config.json").read_text())
    processor = Qwen2VLImageProcessor(size=p["size"], patch_size=p["patch_size"], temporal_patch_size=p["temporal_patch_size"], merge_size=p["merge_size"], image_mean=p["image_mean"], image_std=p["image_std"])
    return model, processor, Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def prompt(turns, tokens=0, system=None, thinking=False):
    """turns: user, assistant, user, ... texts; the picture stands before the first."""
    text = f"<|im_start|>system\n{system.strip()}<|im_end|>\n" if system else ""
    for i, t in enumerate(turns):
        picture = "<|vision_start|>" + "<|image_pad|>" * tokens + "<|vision_end|>" if i == 0 and tokens else ""
        text += f"<|im_start|>{'assistant' if i % 2 else 'user'}\n{picture}{t.strip()}<|im_end|>\n"
    return text + "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")


class Runner:
    def __init__(self, folder):
        self.model, self.processor, self.tokenizer = load(folder)
        c = json.loads((Path(folder) / "config.json").read_text())
        self.image = c["image_token_id"]
        self.stop = json.loads((Path(folder) / "generation_config.json").read_text())["eos_token_id"]

    def see(self, rgb):
        return self.processor(images=[rgb], return_tensors="pt")

    def logits(self, ids, seen):
        more = dict(pixel_values=seen["pixel_values"], image_grid_thw=seen["image_grid_thw"]) if seen else {}
        t = torch.tensor([ids])
        if seen:
            more["mm_token_type_ids"] = (t == self.image).int()
        self.model.model.rope_deltas = None
        return self.model(input_ids=t, use_cache=False, **more).logits[0]

    def positions(self, ids, seen):
        t = torch.tensor([ids])
        if not seen:
            return torch.arange(len(ids)).repeat(3, 1), len(ids)
        p, delta = self.model.model.get_rope_index(input_ids=t, mm_token_type_ids=(t == self.image).int(), image_grid_thw=seen["image_grid_thw"], attention_mask=torch.ones_like(t))
        return p[:, 0], len(ids) + int(delta.flatten()[0])

    def run(self, ids, seen, steps, stop=()):
        """Greedy tokens and the rows of logits that chose them."""
        ids, rows, tokens = list(ids), [], []
        while len(tokens) < steps:
            row = self.logits(ids, seen)[-1]
            token = int(row.argmax())
            if token in stop:
                break
            tokens.append(token)
            rows.append(row)
            ids.append(token)
        return tokens, rows

    def answer(self, turns, rgb=None, system=None, thinking=False):
        seen = self.see(rgb) if rgb is not None else None
        n = int(seen["image_grid_thw"].prod()) // 4 if seen else 0
        ids = self.tokenizer.encode(prompt(turns, n, system, thinking), add_special_tokens=False).ids
        return self.tokenizer.decode(self.run(ids, seen, 96, self.stop)[0], skip_special_tokens=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("samples", type=Path)
    p.add_argument("out", type=Path)
    a = p.parse_args()
    torch.set_grad_enabled(False)
    a.out.mkdir(parents=True, exist_ok=True)
    r = Runner(a.checkpoint)
    pictures = {"three": "three-shapes.png", "wide": "two-shapes-wide.png"}
    cases = [
        dict(name="what_is_it", message="What is qwen35-direct?"),
        dict(name="sum_think", message="What is 7 plus 5?", thinking=True),
        dict(name="system", message="What can you do?", system="You are a helpful assistant."),
        dict(name="no_picture", message="What colour is the circle?"),
        dict(name="describe", message="What is in this picture?", image="three"),
        dict(name="colour_think", message="What colour is the star?", image="three", thinking=True),
        dict(name="side_wide", message="What is on the left?", image="wide"),
        dict(name="exists_wide_think", message="Is there a yellow cross?", image="wide", thinking=True),
        # Offered functions are nothing but a system text.
        dict(name="add_call", message="What is 17 plus 25?", system=tools.block(tools.EXAMPLE), steps=58),
        dict(name="clock_call", message="What time is it?", system=tools.block(tools.EXAMPLE)),
    ]
    index = dict(set="demo", images={}, cases=[], tokenizer=[])
    seen = {}
    for key, file in pictures.items():
        image = Image.open(a.samples / file).convert("RGB")
        rgb = np.asarray(image)
        s = seen[key] = r.see(rgb)
        t, gh, gw = s["image_grid_thw"][0].tolist()
        flat = s["pixel_values"].reshape(-1, 3, 2, 256)
        assert torch.equal(flat[:, :, 0], flat[:, :, 1])
        patches = flat[:, :, 0].reshape(-1, 768).contiguous()
        u8 = (patches.double() * 127.5 + 127.5).round().to(torch.uint8)
        kept = {}
        hook = r.model.model.visual.merger.register_forward_pre_hook(lambda _, x: kept.update(hidden=x[0]))
        out = r.model.model.visual(s["pixel_values"], grid_thw=s["image_grid_thw"])
        hook.remove()
        vision = out.pooler_output if hasattr(out, "pooler_output") else out
        vision = torch.cat(vision) if isinstance(vision, (tuple, list)) else vision
        image.save(a.out / f"{key}.png")
        save_file(dict(rgb=torch.from_numpy(rgb.copy()), grid=torch.tensor([gh, gw], dtype=torch.int32), patches_u8=u8, patches=patches, vision=vision.float().contiguous(), vision_hidden=kept["hidden"].float().reshape(gh * gw, -1).contiguous()), str(a.out / f"{key}.safetensors"))
        index["images"][key] = dict(width=image.width, height=image.height, resized=[gh * 16, gw * 16], grid=[gh, gw], tokens=gh * gw // 4, png=f"{key}.png", file=f"{key}.safetensors", rgb_sha256=hashlib.sha256(rgb.tobytes()).hexdigest())
    for c in cases:
        key = c.get("image")
        s = seen.get(key)
        text = prompt([c["message"]], index["images"][key]["tokens"] if key else 0, c.get("system"), c.get("thinking", False))
        ids = r.tokenizer.encode(text, add_special_tokens=False).ids
        tokens, rows = r.run(ids, s, c.get("steps", STEPS))
        full = r.logits(ids + tokens, s)[len(ids) - 1 : -1]
        rows = torch.stack(rows)
        top, which = rows.topk(TOP)
        position, following = r.positions(ids, s)
        save_file(dict(ids=torch.tensor(ids, dtype=torch.int32), logits=rows[0].clone(), tokens=torch.tensor(tokens, dtype=torch.int32), top_ids=which.int().contiguous(), top_logits=top.contiguous(),
                       positions=position.T.int().contiguous(), next_pos=torch.tensor([following], dtype=torch.int32)), str(a.out / f"{c['name']}.safetensors"))
        index["cases"].append(dict(name=c["name"], file=f"{c['name']}.safetensors", message=c["message"], system=c.get("system"), thinking=c.get("thinking", False), images=[key] if key else [], text=text, prompt_tokens=len(ids), next_pos=following,
                                   cached_vs_full=float((full - rows).abs().max()), margins=[round(float(x), 4) for x in top[:, 0] - top[:, 1]], stop_in_tokens=[i for i, t in enumerate(tokens) if t in r.stop], answer=r.tokenizer.decode(tokens, skip_special_tokens=False)))
    texts = ["", "  ", "Hello!", "What is in this picture?", " Two  spaces\n\nand lines\r\n", "I'm, you're, WE'LL", "1234 + 56 = 1290", "naïve café ÅÅ ﬁ", "日本語 и текст 🙂", "<|im_start|>user\nHi<|im_end|>", "<think>\nyes\n</think>", "a_b->c();  // x", talk.NO_PICTURE]
    for text in texts:
        ids = r.tokenizer.encode(text, add_special_tokens=False).ids
        index["tokenizer"].append(dict(text=text, ids=ids, decoded=r.tokenizer.decode(ids, skip_special_tokens=False), decoded_skip=r.tokenizer.decode(ids, skip_special_tokens=True)))
    (a.out / "index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    for c in index["cases"]:
        print(c["name"], "|", c["message"], "|", c["answer"])


if __name__ == "__main__":
    main()
