"""The tokenizer: byte-level BPE over the demo's own texts with Qwen3.5's split, normaliser and special tokens.

    python tokens.py CHECKPOINT
"""
import random
import sys
from pathlib import Path

import talk
from pictures import pick_grid, scene

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
VOCAB = 1024
BASE = VOCAB - len(SPECIAL) - len(PLAIN)
ID = {text: BASE + i for i, text in enumerate(SPECIAL + PLAIN)}


def corpus(rng):
    for _ in range(5000):
        sc, kind = scene(rng, pick_grid(rng)), None
        for _ in range(3):
            t = talk.about_picture(rng, sc, kind)
            kind = t["kind"]
            yield t["question"]
            yield from (text for think in (False, True) for text in talk.spoken(sc, t, think) if text)
        t = talk.without_picture(rng)
        yield t["question"]
        yield t["answer"]
    for text in talk.BEYOND + talk.SYSTEM + list(talk.REASONS.values()) + [" ".join(talk.WORDS)]:
        for _ in range(4):
            yield text
    for _ in range(50):
        yield "system\nuser\nassistant\n\n\n"


def build():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False), pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    t.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=BASE, min_frequency=2, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=[])
    t.train_from_iterator(corpus(random.Random(5)), trainer)
    assert t.get_vocab_size() == BASE, t.get_vocab_size()
    t.add_tokens([AddedToken(text, special=text in SPECIAL, normalized=False) for text in SPECIAL + PLAIN])
    return t


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    t = build()
    t.save(str(folder / "tokenizer.json"), pretty=False)
    for text in [" red", " circle", " circles", " crosses", " triangle", " purple", " background", " left", "What colour is the star?", talk.TALK["project"][2], "7 + 12 = 19.", "Explain zebras!"]:
        e = t.encode(text, add_special_tokens=False)
        print(len(e.ids), e.tokens)
