"""Exact match of greedy answers on fresh pictures, by kind of question.

    python evaluate.py CHECKPOINT [--n 200] [--markdown FILE] [--wrong FILE]

An answer counts only if every token is right, its end included. (Measured with the true answer so far as the prefix: all tokens
right there is the same as all tokens right when the model runs freely.) "float32" is the checkpoint as it is; "as packed" has the
text weights in 8-bit blocks with shared exponents (bfp16), the vision weights in int8 with a factor a channel, and every projection's input and
output in bf16, as on the NPU.
"""
import argparse
import collections
import copy
import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

import checkpoint
import data
import pictures
import talk
import tools


def blocks(w):
    """Rounds to blocks of 8 along the input with one exponent and 8-bit mantissas."""
    b = w.reshape(w.shape[0], -1, 8)
    top = b.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(top)[1] - 1
    unit = torch.ldexp(torch.ones_like(top), exponent - 6)
    return torch.where(top > 0, torch.clamp(torch.round(b / unit), -128, 127) * unit, 0.0).reshape(w.shape)


def channels(w):
    unit = w.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return torch.round(w / unit) * unit


def as_packed(m):
    m = copy.deepcopy(m)
    bf16 = lambda x: x.bfloat16().float()
    for name, layer in m.named_modules():
        if isinstance(layer, torch.nn.Linear) and not name.endswith(("in_proj_a", "in_proj_b")):
            layer.weight.data = (channels if name.startswith("visual") else blocks)(layer.weight.data)
            layer.register_forward_pre_hook(lambda _, x: (bf16(x[0]),))
            layer.register_forward_hook(lambda _, x, y: bf16(y))
    rows = m.language_model.embed_tokens
    rows.weight.data = blocks(rows.weight.data)
    return m


def cases(rng, writer, n, others):
    """{(group, kind): [(scenes, row)]}, one answer to measure a row: its last. With a function called, the call and the answer."""
    out = collections.defaultdict(list)

    def add(group, kind, sc, turns, **k):
        for t in turns:
            t.setdefault("scene", sc)
        ids, spans, slots = writer.write(turns, **k)
        measured = (2 if k.get("thinking") else 1) * (2 if "call" in turns[-1] else 1)
        scenes = []
        for t in turns:
            if t["scene"] and t["scene"] is not (scenes or [None])[-1]:
                scenes.append(t["scene"])
        out[group, kind].append((scenes, (ids, spans[-measured:], slots)))

    def fresh(kind, grid=pictures.SQUARE, **k):
        while True:
            sc = pictures.scene(rng, grid)
            t = talk.ask(rng, sc, kind, **k)
            if t:
                return sc, t

    for kind in talk.WEIGHTS:
        for _ in range(n):
            sc, t = fresh(kind)
            add("trained wording", kind, sc, [t])
        for _ in range(2 * others):
            sc, t = fresh(kind, held=True)
            add("new wording", kind, sc, [t])
        for _ in range(others):
            sc, t = fresh(kind)
            add("thinking", kind, sc, [t], thinking=True)
            grid = rng.choice([g for g, _ in pictures.GRIDS if g != pictures.SQUARE])
            sc, t = fresh(kind, grid)
            add("other picture sizes", kind, sc, [t])
            if kind in talk.FOLLOW_UPS:
                while True:
                    sc, t = fresh(kind)
                    u = talk.ask(rng, sc, kind, follows=True)
                    if u:
                        break
                if kind in ("count", "describe", "background"):
                    t = talk.about_picture(rng, sc)
                add("second turn, elliptic", kind, sc, [t, u], keep=rng.random() < 0.5)
            sc, u = fresh(kind)
            add("second turn, any", kind, sc, [talk.about_picture(rng, sc), u], keep=rng.random() < 0.5)
            sc, t = fresh(kind)
            add("system prompt", kind, sc, [t], system=rng.choice(talk.SYSTEM_HELD))
    for kind in talk.TEXT_KINDS:
        for _ in range(n):
            add("trained wording", kind, None, [talk.without_picture(rng, kind)])
        for _ in range(2 * others):
            add("new wording", kind, None, [talk.without_picture(rng, kind, held=True)])
        for _ in range(others):
            add("thinking", kind, None, [talk.without_picture(rng, kind)], thinking=True)
            add("second turn, any", kind, None, [talk.without_picture(rng), talk.without_picture(rng, kind)], keep=rng.random() < 0.5)
            add("system prompt", kind, None, [talk.without_picture(rng, kind)], system=rng.choice(talk.SYSTEM_HELD))

    rng = random.Random(rng.getrandbits(32))
    both = {"add", "clock"}

    def called(kind, names=both, **k):
        if kind in ("clock", "clock with seconds", "time, none offered"):
            return tools.clock(rng, names, seconds=kind == "clock with seconds", **k)
        digits = {"add: one digit": 1, "add: two digits": 2}.get(kind, 2)
        return tools.add(rng, names, digits=digits, **k)

    def ordinary(kind, names):
        if kind in talk.WEIGHTS:
            return fresh(kind)
        while True:
            t = talk.without_picture(rng, kind)
            if not (t["question"] in tools.TIME[0] and "clock" in names):
                return None, t

    for kind in list(talk.WEIGHTS) + list(talk.TEXT_KINDS):
        for _ in range(others):
            which = ["clock"] if kind == "sum" else rng.choice([["add", "clock"], ["add", "clock"], ["add"], ["clock"], []])
            definitions, names = tools.offer(rng, which)
            sc, t = ordinary(kind, names)
            before = [called(rng.choice(["add: two digits", "clock"]), names)] if rng.random() < 0.5 else []
            add("tools offered", kind, sc, before + [t], definitions=definitions, keep=rng.random() < 0.5)
            if kind in talk.WEIGHTS:
                sc, t = fresh(kind)
                t["scene"] = sc
                first = talk.without_picture(rng) if rng.random() < 0.5 else talk.about_picture(rng, other := pictures.scene(rng, pictures.SQUARE))
                first["scene"] = other if first["kind"] in talk.WEIGHTS else None
                add("new picture in the second turn", kind, sc, [first, t], keep=rng.random() < 0.5)
    for kind in CALLS:
        for i in range(n):
            none = kind.endswith("none offered")
            definitions, names = tools.offer(rng, [] if none else ["add", "clock"] if rng.random() < 0.6 else ["clock"] if kind.startswith("clock") else ["add"])
            if none and rng.random() < 0.5:
                definitions = None
            if kind == "add to that":
                if i < others:
                    first = called("add: two digits", names)
                    u = called(kind, names, before=int(first["result"]), again=True, more=True)
                    add("second turn, elliptic", kind, None, [first, u], definitions=definitions, keep=rng.random() < 0.5)
                continue
            add("trained wording", kind, None, [called(kind, names)], definitions=definitions)
            if i < others:
                add("thinking", kind, None, [called(kind, names)], definitions=definitions, thinking=True)
                add("system prompt", kind, None, [called(kind, names)], definitions=definitions, system=rng.choice(talk.SYSTEM_HELD))
                sc = pictures.scene(rng, pictures.SQUARE) if rng.random() < 0.5 else None
                add("second turn, any", kind, sc, [talk.about_picture(rng, sc) if sc else talk.without_picture(rng, "talk"), called(kind, names)], definitions=definitions, keep=rng.random() < 0.5)
                if not none:
                    add("tools offered", kind, None, [called(kind)], definitions=tools.EXAMPLE)
                    first = called(kind, names)
                    u = called(kind, names, **(dict(again=True) if kind.startswith("clock") else dict(before=int(first["result"]), again=True, more=False)))
                    add("second turn, elliptic", kind, None, [first, u], definitions=definitions, keep=rng.random() < 0.5)
            if i < 2 * others:
                add("new wording", kind, None, [called(kind, names, held=True)], definitions=definitions)
    return out


def batches(found, size=16, seed=1):
    """Rows of equal picture size together; yields (batch, keys of the rows)."""
    rng, by_grid = random.Random(seed), collections.defaultdict(list)
    for key, rows in found.items():
        for scenes, row in rows:
            by_grid[scenes[0]["grid"] if scenes else None].append((key, scenes, row))
    for grid, items in by_grid.items():
        items.sort(key=lambda i: len(i[2][0]))
        for k in range(0, len(items), size):
            part = items[k : k + size]
            b = data.collate([row for _, _, row in part])
            if grid:
                b.update(grid=grid, pixels=np.stack([pictures.patches(pictures.render(sc, rng)) for _, scenes, _ in part for sc in scenes]))
            owner = [i for i, (_, _, row) in enumerate(part) for _ in row[1]]
            yield {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in b.items()}, [key for key, _, _ in part], owner


GROUPS = ["trained wording", "new wording", "second turn, elliptic", "second turn, any", "thinking", "system prompt", "other picture sizes", "tools offered", "new picture in the second turn"]
CALLS = ["add: one digit", "add: two digits", "add to that", "clock", "clock with seconds", "small sum, none offered", "time, none offered"]
BOTH = ["new wording"]  # measured as it is and as packed; the other groups as packed


def part(rank, a, results):
    os.setsid()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(a.checkpoint + "/tokenizer.json")
    m = checkpoint.load(a.checkpoint)
    packed = as_packed(m)
    found = {key: rows[rank :: a.processes] for key, rows in cases(random.Random(a.seed), data.Writer(tokenizer), a.n, a.others).items()}
    score, shown = collections.defaultdict(list), []
    for asis in (False, True):
        for b, keys, owner in batches({k: rows for k, rows in found.items() if not asis or k[0] in BOTH}, seed=rank):
            guess = (m if asis else packed)(b)[0].argmax(-1)
            wrong = {owner[s] for s in b["span"][guess != b["goal"]].tolist()}
            for i, key in enumerate(keys):
                score[key, asis].append(i not in wrong)
                if i in wrong and not asis:
                    mine = torch.tensor([owner[s] == i for s in b["span"].tolist()])
                    text = tokenizer.decode([t for t in b["ids"][i].tolist() if t not in (data.PAD, data.IMAGE)], skip_special_tokens=False)
                    shown.append((key, text, tokenizer.decode(guess[mine].tolist())))
    results.put((dict(score), shown))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("--n", type=int, default=200, help="questions a kind in trained wordings")
    p.add_argument("--others", type=int, default=50, help="questions a kind in every other group; twice that in new wordings")
    p.add_argument("--seed", type=int, default=990001)
    p.add_argument("--markdown")
    p.add_argument("--wrong", help="a file for the wrong answers")
    p.add_argument("--processes", type=int, default=4)
    a = p.parse_args()
    context, begin = multiprocessing.get_context("spawn"), time.time()
    results = context.Queue()
    jobs = [context.Process(target=part, args=(rank, a, results), daemon=True) for rank in range(a.processes)]
    for j in jobs:
        j.start()
    score, shown = collections.defaultdict(list), []
    for _ in jobs:
        s, w = results.get()
        shown += w
        for k, v in s.items():
            score[k] += v
    kinds = list(talk.WEIGHTS) + list(talk.TEXT_KINDS) + CALLS
    columns = [("float32: " + g, g, True) for g in BOTH] + [(g, g, False) for g in GROUPS]
    head = ["question"] + [c[0] for c in columns]
    rows = []
    for kind in kinds:
        have = [score.get(((g, kind), asis)) for _, g, asis in columns]
        rows.append([kind] + [f"{100 * np.mean(h):.1f}" if h else "" for h in have])
    pool = [[x for k in kinds for x in score.get(((g, k), asis), [])] for _, g, asis in columns]
    rows.append(["all (of)"] + [f"{100 * np.mean(x):.1f} ({len(x)})" for x in pool])
    text = "\n".join("| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head)] + rows) + "\n"
    print(text, f"{time.time() - begin:.0f} s")
    if a.markdown:
        Path(a.markdown).write_text(text)
    if a.wrong:
        Path(a.wrong).write_text("\n\n".join(f"{k}\n{t}\nGUESS {g}" for k, t, g in shown))


if __name__ == "__main__":
    main()
