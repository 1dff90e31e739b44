"""Conversations as token arrays, and batches of them."""
import numpy as np

import pictures
import talk
import tools
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

    def write(self, turns, thinking=False, system=None, keep=False, definitions=None):
        """Token ids, the answers' spans [(first, end, kind)] and where the tokens of each picture start. A turn's "scene" is what
        it speaks of; it brings the picture when it is another than that of the turn before. `thinking` is for the last turn;
        `keep` leaves the empty thoughts of earlier turns in, as when the state of the last turn is carried on."""
        ids, spans, slots, seen = [], [], [], None
        if definitions is not None:
            system = tools.block(definitions, system)
        if system:
            ids += self.head["system"] + self.ids(system) + [END] + self.ids("\n")
        for i, t in enumerate(turns):
            last, sc = i == len(turns) - 1, t.get("scene")
            ids += self.head["user"]
            if sc and sc is not seen:
                slots.append((len(ids) + 1, sc["grid"]))
                ids += [VISION_START] + [IMAGE] * (sc["grid"][0] * sc["grid"][1]) + [VISION_END]
                seen = sc
            ids += self.ids(t["question"]) + [END] + self.ids("\n") + self.head["assistant"]
            thought, answer = talk.spoken(sc, t, thinking and last)
            kind = t["kind"]

            def say(thought, text, kind):
                nonlocal ids
                if thought:
                    ids += [THINK] + self.ids("\n")
                    spans.append((len(ids), len(ids) + len(self.ids(thought)) + 3, "think"))
                    ids += self.ids(thought) + self.ids("\n") + [THINK_END] + self.ids("\n\n")
                    kind = "thinking: " + kind
                elif last or keep:
                    ids += self.no_thought
                spans.append((len(ids), len(ids) + len(self.ids(text)) + 1, kind))
                ids += self.ids(text) + [END] + self.ids("\n")

            if "call" in t:
                say(thought, tools.call(*t["call"]), kind + ": call")
                ids += self.head["user"] + self.ids(f"<tool_response>\n{t['result']}\n</tool_response>") + [END] + self.ids("\n") + self.head["assistant"]
                say(thought and talk.REASONS["result"], answer, kind + ": answer")
            else:
                say(thought, answer, kind)
        return ids, spans, slots

    def cost(self, t):
        """About how many tokens a turn takes."""
        sc = t.get("scene")
        called = len(self.ids(tools.call(*t["call"]))) + 24 if "call" in t else 0
        return len(self.ids(t["question"])) + len(self.ids(talk.spoken(sc, t, False)[1])) + 16 + called

    def conversation(self, rng, scenes, budget, thinking=0.2, offers=False):
        """A conversation of about so many tokens, about these scenes one after the other; with `offers` there are tools."""
        system = rng.choice(talk.SYSTEM) if rng.random() < (0.15 if offers else 0.08) else None
        thinking = rng.random() < thinking
        definitions, names = tools.offer(rng) if offers else (None, frozenset())
        turns, kind, before = [], None, None
        used = len(self.ids(tools.block(definitions, system))) + 5 if offers else len(self.ids(system)) + 5 if system else 0
        used += sum(sc["grid"][0] * sc["grid"][1] + 2 for sc in scenes)
        coming, shown = list(scenes), None
        blind = rng.randint(1, 2) if rng.random() < 0.15 else 0  # turns before the first picture comes
        while True:
            if coming and (len(turns) >= blind if shown is None else rng.random() < 0.5):
                shown = coming.pop(0)
            if rng.random() < (0.75 if names and not shown else 0.5 if names else 0.25 if offers else 0.05 if shown else 0.2):
                if rng.random() < (0.3 if names != {"clock"} else 0.6):
                    t = tools.clock(rng, names, again=kind == "clock")
                else:
                    t = tools.add(rng, names, before=before)
            elif shown and rng.random() > (0.12 if offers else 0.05):
                t = talk.about_picture(rng, shown, kind if kind in talk.WEIGHTS else None)
            else:
                t = talk.without_picture(rng)
                while (shown and t["kind"] == "no picture") or (t["kind"] == "sum" and "add" in names) or (t["question"] in tools.TIME[0] and "clock" in names):
                    t = talk.without_picture(rng)
            t["question"] = talk.loosely(rng, t["question"])
            if shown:
                t["scene"] = shown
            cost = self.cost(t)
            if turns and not coming and turns[-1].get("scene") is shown and used + cost > budget:
                break
            kind, before = t["kind"], int(t["result"]) if t["kind"] == "add" else 0 if t["kind"] in ("sum", "big sum") else None
            turns.append(t)
            used += cost
        return self.write(turns, thinking, system, rng.random() < 0.5, definitions)

    def practice(self, rng, budget):
        """Nothing but sums with the function, the definitions as short as they can be: numbers to copy. Most of the time in
        short, only the numbers and what ends them counting: thrice as many to a token."""
        if rng.random() < 0.75:
            ids, spans = self.head["user"], []

            def say(text, counts):
                nonlocal ids
                if counts:
                    spans.append((len(ids), len(ids) + len(self.ids(text)), "drill: numbers"))
                ids = ids + self.ids(text)

            while True:
                if rng.random() < 0.25:
                    t = tools.clock(rng, {"clock"})
                    parts = [(t["question"], 0)]
                else:
                    t = tools.add(rng, {"add"})
                    x, y = t["call"][1].values()
                    parts = [(t["question"] + " =a>\n", 0), (f"{x}\n", 1), ("=b>\n", 0), (f"{y}\n", 1)]
                parts += [(f"<tool_response>\n{t['result']}\n</tool_response>\n", 0), (t["answer"], 1), ("\n", 0)]
                if len(ids) + sum(len(self.ids(text)) for text, _ in parts) > budget:
                    return ids, spans, []
                for text, counts in parts:
                    say(text, counts)
        definitions, turns, before = [{"name": "add"}] + ([{"name": "clock"}] if rng.random() < 0.3 else []), [], None
        used = len(self.ids(tools.block(definitions)))
        while True:
            t = tools.add(rng, {"add"}, before=before)
            used += self.cost(t)
            if turns and used > budget:
                return self.write(turns, False, None, rng.random() < 0.5, definitions)
            turns.append(t)
            before = int(t["result"])

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
                return ids, spans, []
            ids = ids + question
            spans.append((len(ids), len(ids) + len(answer), "drill: " + t["kind"]))
            ids = ids + answer


def positions(n, slots):
    """Interleaved M-RoPE positions [n, 3]: a picture's tokens count rows and columns, and what follows goes on after its longer side."""
    p, done, offset = np.zeros((n, 3), np.int64), 0, 0
    for slot, (h, w) in slots:
        p[done : slot] = (offset + np.arange(slot - done))[:, None]
        offset, done = offset + slot - done, slot + h * w
        row, col = np.divmod(np.arange(h * w), w)
        p[slot:done] = offset + np.stack([np.zeros_like(row), row, col], 1)
        offset += max(h, w)
    p[done:] = (offset + np.arange(n - done))[:, None]
    return p


def pictures_batch(rng, n, grid=None):
    grid = grid or pictures.pick_grid(rng)
    scenes = [pictures.scene(rng, grid) for _ in range(n)]
    out = dict(grid=grid, pixels=np.stack([pictures.patches(pictures.render(sc, rng)) for sc in scenes]))
    found = [pictures.labels(sc) for sc in scenes]
    out.update({k: np.stack([f[k] for f in found]) for k in found[0]})
    return out, scenes


def collate(rows):
    """rows: (ids, spans, slots). `chosen` are the flat places whose next token counts, `goal` those tokens, `span` which
    answer each belongs to, `kinds` the kind of each answer."""
    length = max(len(r[0]) for r in rows)
    ids, pos = np.full((len(rows), length), PAD, np.int64), np.zeros((len(rows), length, 3), np.int64)
    chosen, goal, span, kinds = [], [], [], []
    for b, (x, spans, slots) in enumerate(rows):
        ids[b, : len(x)], pos[b, : len(x)] = x, positions(len(x), slots)
        for first, end, kind in spans:
            chosen += [b * length + k - 1 for k in range(first, end)]
            goal += x[first:end]
            span += [len(kinds)] * (end - first)
            kinds.append(kind)
    return dict(ids=ids, positions=pos, is_picture=ids == IMAGE, chosen=np.array(chosen), goal=np.array(goal), span=np.array(span), kinds=kinds)


def batch(rng, writer, with_picture, without, drills, budget, thinking, offers=False):
    """Rows with so many pictures in all, rows without, and drills (with tools: practice in calling)."""
    out, scenes = pictures_batch(rng, with_picture)
    rows = []
    while scenes:
        n = 2 if len(scenes) > 1 and rng.random() < (0.15 if offers else 0.03) else 1
        rows.append(writer.conversation(rng, scenes[:n], budget, thinking, offers))
        scenes = scenes[n:]
    rows += [writer.conversation(rng, [], budget, thinking, offers) for _ in range(without)] + [(writer.practice if offers else writer.drill)(rng, budget) for _ in range(drills)]
    out.update(collate(rows))
    return out
