"""Pictures of big coloured shapes, drawn with distance functions, and the labels the vision tower is trained on.

A scene is one to three shapes side by side on a light background: two take a half of the width each, three a third. All
colours of a scene differ, kinds of shape may repeat, and no two shapes touch.
"""
import math

import numpy as np

SHAPES = ["circle", "square", "triangle", "star", "cross"]
COLOURS = {
    "red": (222, 32, 36),
    "green": (34, 160, 58),
    "blue": (36, 70, 214),
    "yellow": (246, 218, 40),
    "purple": (138, 44, 168),
    "black": (20, 20, 22),
}
COLOUR_NAMES = list(COLOURS)
# Always lighter than the shapes: a shape then differs from what is behind it in one direction only.
BACKGROUNDS = {"white": (250, 250, 250), "gray": (198, 198, 200), "beige": (245, 228, 196)}
# Grids of merged picture tokens (rows, columns; one token is 32 x 32 pixels), with their share of the training data.
# A square picture always becomes 4 x 4; the others are what the preprocessor makes of landscape and portrait pictures.
GRIDS = [((4, 4), 64), ((3, 4), 10), ((4, 5), 8), ((3, 5), 8), ((5, 4), 5), ((4, 3), 5)]
SQUARE = (4, 4)


def pick_grid(rng):
    return rng.choices([g for g, _ in GRIDS], [w for _, w in GRIDS])[0]


def coverage(kind, x, y, r):
    """How much of each pixel the shape covers, 0..1; x and y are pixel centres relative to the shape."""
    if kind == "circle":
        d = np.hypot(x, y) - r * 0.95
    elif kind == "square":
        d = np.maximum(np.abs(x), np.abs(y)) - r * 0.84
    elif kind == "triangle":
        big = r * 1.02
        y = y - r * 0.18
        d = y - big * 0.5
        c, s = math.cos(math.radians(30)), math.sin(math.radians(30))
        for side in (-1, 1):
            d = np.maximum(d, side * x * c - y * s - big * 0.5)
    elif kind == "star":
        outer, inner = r * 1.08, r * 0.47
        w = 2 * math.pi / 5
        a = np.arctan2(x, -y)
        a = np.abs((a + w / 2) % w - w / 2)
        rho = np.hypot(x, y)
        px, py = rho * np.cos(a), rho * np.sin(a)
        ex, ey = inner * math.cos(w / 2) - outer, inner * math.sin(w / 2)
        d = ((px - outer) * ey - py * ex) / math.hypot(ex, ey)
    else:
        long, thick = r * 0.98, r * 0.34
        ax, ay = np.abs(x), np.abs(y)
        d = np.minimum(np.maximum(ax - long, ay - thick), np.maximum(ax - thick, ay - long))
    return np.clip(0.5 - d, 0, 1)


def scene(rng, grid=SQUARE, count=None):
    """Draws the lots of one picture; its shapes come from left to right."""
    height, width = grid[0] * 32, grid[1] * 32
    n = count or rng.choices([1, 2, 3], [20, 42, 38])[0]
    if width < 128:
        n = min(n, 2)
    small, big = {1: (19, 31), 2: (18, 28), 3: (17, 24)}[n]
    bands = {1: [(0, 1)], 2: [(0, 0.47), (0.53, 1)], 3: [(0, 0.355), (0.385, 0.615), (0.645, 1)]}[n]
    gap = {1: 0, 2: 32, 3: 27}[n]
    colours = rng.sample(COLOUR_NAMES, n)
    kinds = rng.sample(SHAPES, n) if rng.random() < 0.75 else [rng.choice(SHAPES) for _ in range(n)]
    tries = 0
    shapes = []
    while len(shapes) < n:
        tries += 1
        if tries > 60:
            shapes, tries, big = [], 0, max(small + 1, big - 1)
        r = rng.uniform(small, big)
        low, high = (f * width for f in bands[len(shapes)])
        x, y = rng.uniform(max(low, r + 1), min(high, width - r - 1)), rng.uniform(r + 1, height - r - 1)
        if any(abs(o["x"] - x) < gap or math.hypot(o["x"] - x, o["y"] - y) < (o["r"] + r) * 1.04 + 2 or cell(o) == cell(dict(x=x, y=y)) for o in shapes):
            continue
        k = len(shapes)
        shapes.append(dict(x=x, y=y, r=r, colour=colours[k], shape=kinds[k]))
    return dict(grid=grid, height=height, width=width, background=rng.choice(list(BACKGROUNDS)), shapes=shapes)


def cell(o):
    return int(o["y"] // 32), int(o["x"] // 32)


def render(sc, rng):
    """u8 [height, width, 3]; also leaves in sc["map"] which shape (1, 2, ...) covers each pixel."""
    img = np.empty((sc["height"], sc["width"], 3), np.float32)
    img[:] = np.clip(np.array(BACKGROUNDS[sc["background"]], np.float32) + rng.uniform(-6, 6), 0, 255)
    owner = np.zeros(img.shape[:2], np.int8)
    for k, o in enumerate(sc["shapes"]):
        colour = np.clip(np.array(COLOURS[o["colour"]], np.float32) + np.array([rng.uniform(-14, 14) for _ in range(3)], np.float32), 0, 255)
        reach = int(o["r"] * 1.15) + 3
        x0, x1 = max(0, int(o["x"]) - reach), min(sc["width"], int(o["x"]) + reach + 1)
        y0, y1 = max(0, int(o["y"]) - reach), min(sc["height"], int(o["y"]) + reach + 1)
        y, x = np.mgrid[y0:y1, x0:x1].astype(np.float32)
        x, y = (x + 0.5 - o["x"]) * rng.uniform(0.94, 1.06), (y + 0.5 - o["y"]) * rng.uniform(0.94, 1.06)
        if rng.random() < 0.4:
            most = {"circle": 0, "star": 15}.get(o["shape"], 8)
            t = math.radians(rng.uniform(-most, most))
            x, y = x * math.cos(t) + y * math.sin(t), -x * math.sin(t) + y * math.cos(t)
        a = coverage(o["shape"], x, y, o["r"])[..., None]
        img[y0:y1, x0:x1] = img[y0:y1, x0:x1] * (1 - a) + colour * a
        owner[y0:y1, x0:x1][a[..., 0] > 0.5] = k + 1
    sc["map"] = owner
    if rng.random() < 0.3:
        img += np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(1, 5), img.shape)
    return np.clip(np.rint(img), 0, 255).astype(np.uint8)


def patches(img):
    """f32 [n, 768]: 16 x 16 patches, each channel-major, in the order of the 2 x 2 blocks the merger joins."""
    h, w = img.shape[0] // 16, img.shape[1] // 16
    v = (img.astype(np.float32) - 127.5) / 127.5
    v = v.reshape(h // 2, 2, 16, w // 2, 2, 16, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(v.reshape(h * w, 768))


IGNORE = -100


def labels(sc):
    """Dense labels. Per merged cell: does it hold a centre; that shape's kind, colour, place and rank from the left.
    Per patch: the kind of shape that covers most of it."""
    gh, gw = sc["grid"]
    n = gh * gw
    own = np.zeros(n, np.float32)
    kind, colour, rank = (np.full(n, IGNORE, np.int64) for _ in range(3))
    place = np.zeros((n, 5), np.float32)
    for k, o in enumerate(sc["shapes"]):
        r, c = cell(o)
        i = r * gw + c
        own[i] = 1
        kind[i], colour[i], rank[i] = SHAPES.index(o["shape"]), COLOUR_NAMES.index(o["colour"]), k
        place[i] = [(o["x"] - c * 32) / 16 - 1, (o["y"] - r * 32) / 16 - 1, o["r"] / 16 - 1.5, 3 * (o["x"] / sc["width"] - 0.5), 3 * (o["y"] / sc["height"] - 0.5)]
    h, w = gh * 2, gw * 2
    patch, most = np.full((h, w), IGNORE, np.int64), np.full((h, w), 40)
    blocks = sc["map"].reshape(h, 16, w, 16)
    for k, o in enumerate(sc["shapes"]):
        area = (blocks == k + 1).sum((1, 3))
        patch[area > most] = SHAPES.index(o["shape"])
        most = np.maximum(most, area)
    patch = patch.reshape(gh, 2, gw, 2).transpose(0, 2, 1, 3).reshape(-1)
    return dict(own=own, kind=kind, colour=colour, place=place, rank=rank, patch=patch, background=list(BACKGROUNDS).index(sc["background"]))
