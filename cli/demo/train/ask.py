"""Asks a checkpoint, by transformers in float32.

    python ask.py CHECKPOINT [--image FILE] [--system TEXT] [--thinking] [--tools] QUESTION [QUESTION ...]

Several questions are the turns of one conversation; the picture stands in the first. With --tools those of samples/tools.json are
offered, and calls are answered.
"""
import argparse
import re
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers.utils.chat_template_utils import render_jinja_template

import tools
from references import Runner

FUNCTIONS = {"add": lambda a, b: int(a) + int(b), "clock": lambda: time.strftime("%H:%M")}


def calls(text):
    for name, inner in re.findall(r"<tool_call>\n<function=(\w+)>\n(.*?)</function>\n</tool_call>", text, re.S):
        yield name, dict(re.findall(r"<parameter=(\w+)>\n(.*?)\n</parameter>\n", inner, re.S))


class Chat:
    def __init__(self, checkpoint, system=None, thinking=False, offered=None):
        self.runner, self.thinking, self.offered = Runner(checkpoint), thinking, offered
        self.template = (Path(checkpoint) / "chat_template.jinja").read_text()
        self.messages, self.seen = [{"role": "system", "content": system}] if system else [], None

    def reply(self):
        r = self.runner
        text = render_jinja_template(conversations=[self.messages], tools=self.offered, chat_template=self.template, add_generation_prompt=True, enable_thinking=self.thinking)[0][0]
        if self.seen:
            text = text.replace("<|image_pad|>", "<|image_pad|>" * (int(self.seen["image_grid_thw"].prod()) // 4))
        said = r.tokenizer.decode(r.run(r.tokenizer.encode(text, add_special_tokens=False).ids, self.seen, 120, r.stop)[0], skip_special_tokens=True)
        thought, answer = said.split("</think>", 1) if self.thinking and "</think>" in said else ("", said)
        found = list(calls(answer))
        message = {"role": "assistant", "content": answer.split("<tool_call>")[0].strip(), "reasoning_content": thought.strip()}
        if found:
            message["tool_calls"] = [{"function": {"name": name, "arguments": arguments}} for name, arguments in found]
        self.messages.append(message)
        return said, found

    def ask(self, question, rgb=None):
        """What is said, one text a step: calls with what they gave, and the answer."""
        content = question
        if rgb is not None:
            self.seen, content = self.runner.see(rgb), [{"type": "image"}, {"type": "text", "text": question}]
        self.messages.append({"role": "user", "content": content})
        while True:
            said, found = self.reply()
            yield said
            if not found:
                return
            for name, arguments in found:
                result = str(FUNCTIONS[name](**arguments)) if name in FUNCTIONS else "unknown function"
                self.messages.append({"role": "tool", "content": result})
                yield f"({name}: {result})"


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("--image")
    p.add_argument("--system")
    p.add_argument("--thinking", action="store_true")
    p.add_argument("--tools", action="store_true")
    p.add_argument("questions", nargs="+")
    a = p.parse_args()
    torch.set_grad_enabled(False)
    rgb = np.asarray(Image.open(a.image).convert("RGB")) if a.image else None
    chat = Chat(a.checkpoint, a.system, a.thinking, tools.EXAMPLE if a.tools else None)
    for i, question in enumerate(a.questions):
        print(f"> {question}")
        for said in chat.ask(question, rgb if i == 0 else None):
            print(said)
