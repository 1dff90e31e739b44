"""Asks a checkpoint, by transformers in float32.

    python ask.py CHECKPOINT [--image FILE] [--system TEXT] [--thinking] QUESTION [QUESTION ...]

Several questions are the turns of one conversation.
"""
import argparse

import numpy as np
import torch
from PIL import Image

from references import Runner

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("--image")
    p.add_argument("--system")
    p.add_argument("--thinking", action="store_true")
    p.add_argument("questions", nargs="+")
    a = p.parse_args()
    torch.set_grad_enabled(False)
    r, turns = Runner(a.checkpoint), []
    rgb = np.asarray(Image.open(a.image).convert("RGB")) if a.image else None
    for question in a.questions:
        answer = r.answer(turns + [question], rgb, a.system, a.thinking)
        print(f"> {question}\n{answer}")
        turns += [question, answer.split("</think>")[-1].strip()]
