"""Trains the demo model on a few processor cores.

    python train.py CHECKPOINT RUN --tower 10 --all 50

CHECKPOINT holds the tokenizer (tokens.py); RUN gets log.jsonl and the state files tower.pt, last.pt, final.pt. First the vision
tower alone learns dense labels for --tower minutes, then everything learns to answer for --all minutes. With --from STATE the
run starts from a saved state. Every batch is drawn anew, so the readings of the log are on pictures never seen before.

The work is split over --processes of one thread each, which add up their gradients once a step: on a machine that is busy with
other things this is several times faster than one process whose threads wait for each other after every operation.
"""
import argparse
import collections
import datetime
import json
import math
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np


def arguments():
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
    p.add_argument("--early", type=int, nargs=3, default=[8, 4, 12], help="rows with pictures, rows without and drills of a step, in the first half")
    p.add_argument("--late", type=int, nargs=3, default=[12, 4, 4])
    p.add_argument("--early-share", type=float, default=0.45)
    p.add_argument("--tools", type=int, nargs=3, default=[0, 0, 0], help="rows with tools of a step: with a picture, without, practice in calling")
    p.add_argument("--tools-budget", type=int, default=330)
    p.add_argument("--digits", type=float, default=3, help="how much more a digit of a sum counts than another token, in rows with tools")
    p.add_argument("--budget", type=int, default=132, help="tokens of a conversation, about")
    p.add_argument("--thinking", type=float, default=0.35, help="the share of conversations whose last turn is thought about")
    p.add_argument("--processes", type=int, default=4)
    p.add_argument("--threads", type=int, default=1, help="of each process")
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def train(rank, a, meeting):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from tokenizers import Tokenizer

    import data
    import pictures
    from model import Config, Labels, Model

    os.setsid()  # where a scheduler shares by session, each process is to count for itself
    torch.set_num_threads(a.threads)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=a.processes, timeout=datetime.timedelta(minutes=10))
    torch.manual_seed(a.seed)
    rng = random.Random(a.seed * 1000 + rank)
    tokenizer = Tokenizer.from_file(str(a.checkpoint / "tokenizer.json"))
    writer = data.Writer(tokenizer)
    first = rank == 0
    log = open(a.run / "log.jsonl", "a") if first else None
    m, heads = Model(Config), Labels(Config, len(pictures.SHAPES), len(pictures.COLOUR_NAMES), len(pictures.BACKGROUNDS))
    m.start_matched()
    if a.start:
        state = torch.load(a.start)
        m.load_state_dict(state["model"])
        heads.load_state_dict(state["labels"])

    def word(text):
        (i,) = tokenizer.encode(text, add_special_tokens=False).ids
        return i

    word_ids = [torch.tensor([word(" " + w) for w in names]) for names in (pictures.SHAPES, pictures.COLOUR_NAMES)]
    digits = torch.tensor([tokenizer.token_to_id(str(n)) for n in range(10)])
    words = lambda: [m.language_model.embed_tokens.weight.detach()[i] for i in word_ids]

    def save(name):
        torch.save(dict(model=m.state_dict(), labels=heads.state_dict()), a.run / (name + ".part"))
        os.replace(a.run / (name + ".part"), a.run / (name + ".pt"))

    def report(**r):
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in r.items()})
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    def tensors(b):
        return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in b.items()}

    def optimiser(parts):
        groups = []
        for modules, share in parts:
            sets = [], []
            for module in modules:
                for k, q in module.named_parameters():
                    sets[q.ndim > 1 and "embed" not in k and "conv1d" not in k].append(q)
            groups += [dict(params=sets[0], weight_decay=0.0, share=share), dict(params=sets[1], weight_decay=0.05, share=share)]
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-8, fused=True)

    def descend(opt, loss, step, begin, minutes, top, floor):
        """One step with the gradients of all processes. The first process's clock says how much of the time is used up."""
        opt.zero_grad(set_to_none=True)
        loss.backward()
        grads = [q.grad for g in opt.param_groups for q in g["params"] if q.grad is not None]
        flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([(time.time() - begin) / 60 / minutes * a.processes if first else 0.0])])
        dist.all_reduce(flat)
        flat /= a.processes
        part, flat = flat[-1].item(), flat[:-1]
        norm = flat.norm().item()
        flat *= min(1.0, 1.0 / (norm + 1e-6))
        for g, x in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(x.view_as(g))
        now = top * min(1, (step + 1) / 30) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1, part))))
        for g in opt.param_groups:
            g["lr"] = now * g["share"]
        opt.step()
        return part, norm

    mean = lambda acc: {k: float(np.mean(v)) for k, v in acc.items()}
    if first:
        print("parameters", sum(q.numel() for q in m.parameters()), flush=True)

    if a.tower > 0:
        opt, acc, begin, step, part = optimiser([([m.visual, heads], 1.0)]), collections.defaultdict(list), time.time(), 0, 0.0
        while part < 1:
            b = tensors(data.pictures_batch(rng, a.tower_pictures // a.processes)[0])
            loss, reads = heads(m.visual(b["pixels"], b["grid"]), b, words())
            part, _ = descend(opt, loss, step, begin, a.tower, a.tower_rate, 0.1)
            step += 1
            for k, v in dict(reads, loss=loss.item()).items():
                acc[k].append(v)
            if step % 25 == 0 and first:
                t = time.time() - begin
                report(stage="tower", step=step, minutes=t / 60, seconds=t / step, **mean(acc))
                acc.clear()
        if first:
            save("tower")

    opt = optimiser([([m.language_model], 1.0), ([m.visual, heads], a.vision_share)])
    acc, right, begin, step, part, saved = collections.defaultdict(list), collections.defaultdict(list), time.time(), 0, 0.0, time.time()
    while part < 1:
        for module in (m.visual, heads):
            module.requires_grad_(part >= a.frozen)
        b = tensors(data.batch(rng, writer, *(n // a.processes for n in (a.early if part < a.early_share else a.late)), a.budget, a.thinking))
        logits, seen = m(b)
        answer = F.cross_entropy(logits, b["goal"])
        dense, reads = heads(seen, b, words())
        done, loss = [(b, logits)], answer + (0.3 * (1 - part) + 0.03) * dense
        if sum(a.tools):
            c = tensors(data.batch(rng, writer, *(n // a.processes for n in a.tools), a.tools_budget, a.thinking, True))
            called, _ = m(c)
            weight = 1.0 + (a.digits - 1) * torch.isin(c["goal"], digits)
            loss = loss + (F.cross_entropy(called, c["goal"], reduction="none") * weight).sum() / weight.sum()
            done.append((c, called))
        part, norm = descend(opt, loss, step, begin, a.all, a.rate, 0.03)
        step += 1
        if not first:
            continue
        for d, (c, guess) in enumerate(done):
            wrong = set(c["span"][guess.argmax(-1) != c["goal"]].tolist())
            for i, kind in enumerate(c["kinds"]):
                right["tools: " * d + kind].append(i not in wrong)
        for k, v in dict(reads, answer=answer.item(), dense=dense.item(), norm=norm, length=b["ids"].shape[1]).items():
            acc[k].append(v)
        if step % 50 == 0:
            t = time.time() - begin
            report(stage="all", step=step, minutes=t / 60, seconds=t / step, **mean(acc), right={k: round(float(np.mean(v)), 3) for k, v in sorted(right.items())})
            acc.clear(), right.clear()
        if time.time() - saved > 180:
            save("last")
            saved = time.time()
    if first:
        save("final")
    dist.barrier()
    dist.destroy_process_group()


def main():
    a = arguments()
    a.run.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [multiprocessing.get_context("spawn").Process(target=train, args=(rank, a, folder + "/meeting"), daemon=True) for rank in range(a.processes)]
        for j in jobs:
            j.start()
        for j in jobs:
            j.join()


if __name__ == "__main__":
    main()
