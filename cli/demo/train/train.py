"""Trains the demo model on two processor cores.

    python train.py CHECKPOINT RUN --tower 10 --all 50

CHECKPOINT holds the tokenizer (tokens.py); RUN gets log.jsonl and the state files tower.pt, last.pt, final.pt. First the vision
tower alone learns dense labels for --tower minutes, then everything learns to answer for --all minutes. With --from STATE the
run starts from a saved state. Every batch is drawn anew, so the readings of the log are on pictures never seen before. Set
OMP_WAIT_POLICY=PASSIVE when the machine has other work.
"""
import argparse
import collections
import json
import math
import os
import random
import time
from pathlib import Path

import numpy as np


def draw(queue, stage, tokenizer, a):
    import data
    from tokenizers import Tokenizer

    writer, rng = data.Writer(Tokenizer.from_file(tokenizer)), random.Random(a.seed * 1000 + 7)
    while True:
        queue.put((stage.value, data.pictures_batch(rng, a.tower_pictures)[0] if stage.value == 0 else data.batch(rng, writer, a.pictures, a.texts, a.budget)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint", type=Path)
    p.add_argument("run", type=Path)
    p.add_argument("--tower", type=float, default=10)
    p.add_argument("--all", type=float, default=50)
    p.add_argument("--from", dest="start", default="")
    p.add_argument("--tower-rate", type=float, default=1e-3)
    p.add_argument("--rate", type=float, default=9e-4)
    p.add_argument("--vision-share", type=float, default=0.12, help="the tower's share of --rate")
    p.add_argument("--frozen", type=float, default=0.15, help="the share of --all in which the tower stays as it is")
    p.add_argument("--tower-pictures", type=int, default=24)
    p.add_argument("--pictures", type=int, default=8)
    p.add_argument("--texts", type=int, default=3)
    p.add_argument("--budget", type=int, default=132)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()

    from multiprocessing import get_context

    context = get_context("fork")
    stage = context.Value("i", 0 if a.tower > 0 else 1)
    queue = context.Queue(6)
    worker = context.Process(target=draw, args=(queue, stage, str(a.checkpoint / "tokenizer.json"), a), daemon=True)
    worker.start()

    import torch
    import torch.nn.functional as F
    from tokenizers import Tokenizer

    import pictures
    from model import Config, Labels, Model

    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    a.run.mkdir(parents=True, exist_ok=True)
    log = open(a.run / "log.jsonl", "a")
    m, heads = Model(Config), Labels(Config, len(pictures.SHAPES), len(pictures.COLOUR_NAMES), len(pictures.BACKGROUNDS))
    m.start_matched()
    if a.start:
        state = torch.load(a.start)
        m.load_state_dict(state["model"])
        heads.load_state_dict(state["labels"])
    tokenizer = Tokenizer.from_file(str(a.checkpoint / "tokenizer.json"))

    def word(text):
        (i,) = tokenizer.encode(text, add_special_tokens=False).ids
        return i

    word_ids = [torch.tensor([word(" " + w) for w in names]) for names in (pictures.SHAPES, pictures.COLOUR_NAMES)]
    words = lambda: [m.language_model.embed_tokens.weight.detach()[i] for i in word_ids]

    def save(name):
        torch.save(dict(model=m.state_dict(), labels=heads.state_dict()), a.run / (name + ".part"))
        os.replace(a.run / (name + ".part"), a.run / (name + ".pt"))

    def report(**r):
        line = json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in r.items()})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    def tensors(b):
        return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in b.items()}

    def next_batch(want):
        while True:
            s, b = queue.get()
            if s == want:
                return tensors(b)

    def rate(step, part, top, floor):
        return top * min(1, (step + 1) / 60) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1, part))))

    def optimiser(parts):
        groups = []
        for modules, share in parts:
            sets = [], []
            for module in modules:
                for k, q in module.named_parameters():
                    sets[q.ndim > 1 and "embed" not in k and "conv1d" not in k].append(q)
            groups += [dict(params=sets[0], weight_decay=0.0, share=share), dict(params=sets[1], weight_decay=0.05, share=share)]
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-8, fused=True)

    mean = lambda acc: {k: float(np.mean(v)) for k, v in acc.items()}
    print("parameters", sum(q.numel() for q in m.parameters()), flush=True)

    if a.tower > 0:
        opt, acc, begin, step = optimiser([([m.visual, heads], 1.0)]), collections.defaultdict(list), time.time(), 0
        while (part := (time.time() - begin) / 60 / a.tower) < 1:
            b = next_batch(0)
            for g in opt.param_groups:
                g["lr"] = rate(step, part, a.tower_rate, 0.1)
            loss, reads = heads(m.visual(b["pixels"], b["grid"]), b, words())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([q for g in opt.param_groups for q in g["params"]], 1.0)
            opt.step()
            step += 1
            for k, v in reads.items():
                acc[k].append(v)
            acc["loss"].append(loss.item())
            if step % 25 == 0:
                t = time.time() - begin
                report(stage="tower", step=step, minutes=t / 60, seconds=t / step, **mean(acc))
                acc.clear()
        save("tower")
    stage.value = 1

    opt = optimiser([([m.language_model], 1.0), ([m.visual, heads], a.vision_share)])
    acc, right, begin, step, saved = collections.defaultdict(list), collections.defaultdict(list), time.time(), 0, time.time()
    while (part := (time.time() - begin) / 60 / a.all) < 1:
        b = next_batch(1)
        for g in opt.param_groups:
            g["lr"] = rate(step, part, a.rate, 0.03) * g["share"]
        for module in (m.visual, heads):
            module.requires_grad_(part > a.frozen)
        logits, seen = m(b)
        answer = F.cross_entropy(logits, b["goal"])
        dense, reads = heads(seen, b, words())
        loss = answer + (0.3 * (1 - part) + 0.03) * dense
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        step += 1
        wrong = set(b["span"][logits.argmax(-1) != b["goal"]].tolist())
        for i, kind in enumerate(b["kinds"]):
            right[kind].append(i not in wrong)
        for k, v in dict(reads, answer=answer.item(), dense=dense.item(), norm=norm.item(), length=b["ids"].shape[1], answers=len(b["kinds"])).items():
            acc[k].append(v)
        if step % 50 == 0:
            t = time.time() - begin
            report(stage="all", step=step, minutes=t / 60, seconds=t / step, **mean(acc), right={k: round(float(np.mean(v)), 3) for k, v in sorted(right.items())})
            acc.clear(), right.clear()
        if time.time() - saved > 180:
            save("last")
            saved = time.time()
    save("final")
    worker.terminate()


if __name__ == "__main__":
    main()
