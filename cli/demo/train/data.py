"""Conversations as token arrays, and batches of them."""
import numpy as np

import pictures
import talk
from tokens import ID

PAD, START, END, IMAGE = (ID[t] for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"))
VISION_START, VISION_END, THINK, THINK_END = (ID[t] for t in ("<|vision_start|>", "<|vision_end|>", "<think>", "</think>"))


class Writer:
    def __init__(self, tokenizer):
        self.tokenizer, self.known = tokenizer, {}
        self.head = {role: [START] + self.ids(role) + self.ids("\n") for role in ("system", "user", "assistant")}
        self.no_thought = [THINK] + self.ids("\n\n") + [THINK_END] + self.ids("\n\n")

    def ids(self, text):
        if text not in self.known:
            if len(self.known) > 100000:
                self.known.clear()
            self.known[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.known[text]

    def write(self, sc, turns, thinking=False, system=None, keep=False):
        """Token ids, the answers' spans [(first, end, kind)] and where the picture's tokens start. `thinking` is for the last
        turn; `keep` leaves the empty thoughts of earlier turns in, as when the state of the last turn is carried on."""
        ids, spans, slot = [], [], None
        if system:
            ids += self.head["system"] + self.ids(system) + [END] + self.ids("\n")
        for i, t in enumerate(turns):
            last = i == len(turns) - 1
            ids += self.head["user"]
            if sc and slot is None:
                slot = len(ids) + 1
                ids += [VISION_START] + [IMAGE] * (sc["grid"][0] * sc["grid"][1]) + [VISION_END]
            ids += self.ids(t["question"]) + [END] + self.ids("\n") + self.head["assistant"]
            thought, answer = talk.spoken(sc, t, thinking and last)
            kind = t["kind"]
            if thought:
                ids += [THINK] + self.ids("\n")
                spans.append((len(ids), len(ids) + len(self.ids(thought)) + 3, "think"))
                ids += self.ids(thought) + self.ids("\n") + [THINK_END] + self.ids("\n\n")
                kind = "thinking: " + kind
            elif last or keep:
                ids += self.no_thought
            spans.append((len(ids), len(ids) + len(self.ids(answer)) + 1, kind))
            ids += self.ids(answer) + [END] + self.ids("\n")
        return ids, spans, slot

    def conversation(self, rng, sc, budget, thinking=0.2):
        system = rng.choice(talk.SYSTEM) if rng.random() < 0.08 else None
        thinking = rng.random() < thinking
        turns, kind = [], None
        used = (len(self.ids(system)) + 5 if system else 0) + (sc["grid"][0] * sc["grid"][1] + 2 if sc else 0)
        while True:
            if sc and rng.random() > 0.05:
                t = talk.about_picture(rng, sc, kind)
            else:
                t = talk.without_picture(rng)
                while sc and t["kind"] == "no picture":
                    t = talk.without_picture(rng)
            kind = t["kind"] if sc else None
            t["question"] = talk.loosely(rng, t["question"])
            cost = len(self.ids(t["question"])) + len(self.ids(talk.spoken(sc, t, False)[1])) + 16
            if turns and used + cost > budget:
                break
            turns.append(t)
            used += cost
        return self.write(sc, turns, thinking, system, rng.random() < 0.5)


    def drill(self, rng, budget):
        """A list of shapes and questions with short answers in running text: a look-up every dozen tokens, without a picture.
        Only the answers count."""
        sc = pictures.scene(rng, count=rng.choices([1, 2, 3], [1, 5, 14])[0])
        ids = self.head["user"] + self.ids(rng.choice(["What do you see?", "What is in this picture?", "Describe the picture."])) + [END] + self.ids("\n") + self.head["assistant"] + self.no_thought
        ids, spans = ids + self.ids(talk.listing(sc)), []
        while True:
            t = talk.ask(rng, sc, rng.choices(list(talk.DRILL), list(talk.DRILL.values()))[0])
            if not t:
                continue
            question, answer = self.ids(" " + t["question"]), self.ids(" " + t["answer"])
            if len(ids) + len(question) + len(answer) > budget:
                return ids, spans, None
            ids = ids + question
            spans.append((len(ids), len(ids) + len(answer), "drill: " + t["kind"]))
            ids = ids + answer


def positions(n, slot, grid):
    """Interleaved M-RoPE positions [n, 3]: a picture's tokens count rows and columns."""
    p = np.repeat(np.arange(n)[:, None], 3, 1)
    if slot is not None:
        h, w = grid
        row, col = np.divmod(np.arange(h * w), w)
        p[slot : slot + h * w] = slot + np.stack([np.zeros_like(row), row, col], 1)
        after = slot + h * w
        p[after:] = (slot + max(h, w) + np.arange(n - after))[:, None]
    return p


def pictures_batch(rng, n, grid=None):
    grid = grid or pictures.pick_grid(rng)
    scenes = [pictures.scene(rng, grid) for _ in range(n)]
    out = dict(grid=grid, pixels=np.stack([pictures.patches(pictures.render(sc, rng)) for sc in scenes]))
    found = [pictures.labels(sc) for sc in scenes]
    out.update({k: np.stack([f[k] for f in found]) for k in found[0]})
    return out, scenes


def collate(rows, grid):
    """rows: (ids, spans, slot). `chosen` are the flat places whose next token counts, `goal` those tokens, `span` which
    answer each belongs to, `kinds` the kind of each answer."""
    length = max(len(r[0]) for r in rows)
    ids, pos = np.full((len(rows), length), PAD, np.int64), np.zeros((len(rows), length, 3), np.int64)
    chosen, goal, span, kinds = [], [], [], []
    for b, (x, spans, slot) in enumerate(rows):
        ids[b, : len(x)], pos[b, : len(x)] = x, positions(len(x), slot, grid)
        for first, end, kind in spans:
            chosen += [b * length + k - 1 for k in range(first, end)]
            goal += x[first:end]
            span += [len(kinds)] * (end - first)
            kinds.append(kind)
    return dict(ids=ids, positions=pos, is_picture=ids == IMAGE, chosen=np.array(chosen), goal=np.array(goal), span=np.array(span), kinds=kinds)


def batch(rng, writer, with_picture, without, drills, budget, thinking):
    out, scenes = pictures_batch(rng, with_picture)
    rows = [writer.conversation(rng, sc, budget, thinking) for sc in scenes] + [writer.conversation(rng, None, budget, thinking) for _ in range(without)] + [writer.drill(rng, budget) for _ in range(drills)]
    out.update(collate(rows, out["grid"]))
    return out
