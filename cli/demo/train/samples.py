"""Draws the sample pictures with a drawing library, larger than the model sees them and not by the code that trained it.

    python samples.py FOLDER
"""
import math
import sys
from pathlib import Path

from PIL import Image, ImageDraw

from pictures import BACKGROUNDS, COLOURS


def draw(size, background, shapes, scale=4):
    """shapes: (kind, colour, x, y, r) in pixels."""
    w, h = size
    big = Image.new("RGB", (w * scale, h * scale), BACKGROUNDS[background])
    d = ImageDraw.Draw(big)
    for kind, colour, x, y, r in shapes:
        x, y, r = x * scale, y * scale, r * scale
        fill = COLOURS[colour]
        corner = lambda radius, degrees: (x + radius * math.sin(math.radians(degrees)), y - radius * math.cos(math.radians(degrees)))
        if kind == "circle":
            r *= 0.95
            d.ellipse([x - r, y - r, x + r, y + r], fill=fill)
        elif kind == "square":
            r *= 0.84
            d.rectangle([x - r, y - r, x + r, y + r], fill=fill)
        elif kind == "triangle":
            y += r * 0.18
            d.polygon([corner(r * 1.02, k) for k in (0, 120, 240)], fill=fill)
        elif kind == "star":
            d.polygon([corner(r * (0.47 if k % 2 else 1.08), 36 * k) for k in range(10)], fill=fill)
        else:
            long, thick = r * 0.98, r * 0.34
            d.rectangle([x - long, y - thick, x + long, y + thick], fill=fill)
            d.rectangle([x - thick, y - long, x + thick, y + long], fill=fill)
    return big.resize(size, Image.LANCZOS)


SAMPLES = {
    "three-shapes.png": ((192, 192), "white", [("circle", "red", 38, 112, 31), ("star", "blue", 97, 52, 33), ("square", "green", 156, 132, 31)]),
    "one-shape.png": ((192, 192), "beige", [("triangle", "purple", 96, 92, 42)]),
    "two-shapes-wide.png": ((240, 180), "gray", [("cross", "yellow", 66, 98, 45), ("circle", "black", 174, 78, 43)]),
    "two-shapes.png": ((256, 256), "beige", [("square", "yellow", 70, 84, 50), ("triangle", "black", 188, 160, 54)]),
    "photo-size.jpg": ((1024, 1024), "white", [("star", "purple", 260, 600, 220), ("cross", "red", 760, 400, 220)]),
    "three-more.jpg": ((512, 512), "gray", [("triangle", "green", 98, 330, 84), ("circle", "yellow", 262, 140, 84), ("cross", "blue", 414, 340, 84)]),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, what in SAMPLES.items():
        draw(*what).save(folder / name, **(dict(quality=88) if name.endswith("jpg") else dict(optimize=True)))
