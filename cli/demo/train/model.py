"""Qwen3.5 in plain torch, for training on a CPU: the parameter names of the Hugging Face model, one picture size a batch."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Config:
    hidden = 512
    inner = 512
    layers = ["lin", "att", "att"]
    heads, kv_heads, head_dim = 8, 2, 64
    lin_heads, lin_key, lin_value, conv = 8, 64, 64, 4
    rope_dim, rope_theta, sections = 16, 1e4, [3, 3, 2]
    vocab = 1024
    v_hidden, v_inner, v_heads, v_depth, v_theta = 512, 2048, 8, 1, 1e4
    v_positions = 64
    chunk = 32


def linear(i, o, bias=False, std=None):
    layer = nn.Linear(i, o, bias=bias)
    nn.init.normal_(layer.weight, std=std or 1 / math.sqrt(i))
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class RmsNorm(nn.Module):
    """The weight is stored as an offset from one."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), 1 + self.weight, 1e-6)


class GatedNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x, gate):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6) * F.silu(gate)


class CausalConv(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, Config.conv) * 0.2)
        with torch.no_grad():
            self.weight[:, 0, -1] += 0.8

    def forward(self, x):
        w = self.weight[:, 0]
        y = x * w[:, -1]
        for back in range(1, Config.conv):
            y = y + F.pad(x[:, :-back], (0, 0, back, 0)) * w[:, -1 - back]
        return F.silu(y)


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta_rule(q, k, v, g, beta, size):
    """The gated delta rule over chunks: q, k, v [B, H, L, d], log decay g and beta [B, H, L] -> [B, H, L, d]."""
    length = q.shape[2]
    pad = -length % size
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, pad)) for x in (g, beta))
    n = (length + pad) // size
    b, h = q.shape[:2]
    q, k, v = (x.reshape(b, h, n, size, -1) for x in (q, k, v))
    g, beta = g.reshape(b, h, n, size), beta.reshape(b, h, n, size)
    total = g.cumsum(-1)
    above = torch.ones(size, size, dtype=torch.bool).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(above, float("-inf")).exp()
    kb, kt, since = k * beta.unsqueeze(-1), k.transpose(-1, -2), total.exp().unsqueeze(-1)
    solved = torch.linalg.solve_triangular((kb @ kt) * decay, torch.cat([v * beta.unsqueeze(-1), kb * since], -1), upper=False, unitriangular=True)
    u, w = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    within, query = (q @ kt) * decay, q * since
    write = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    keep = total[..., -1].exp()[..., None, None]
    state, out = None, []
    for i in range(n):
        new = u[:, :, i] if state is None else u[:, :, i] - w[:, :, i] @ state
        o = within[:, :, i] @ new
        out.append(o if state is None else o + query[:, :, i] @ state)
        if i + 1 < n:
            grown = write[:, :, i] @ new
            state = grown if state is None else state * keep[:, :, i] + grown
    return torch.cat(out, 2)[:, :, :length]


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        key, value = c.lin_heads * c.lin_key, c.lin_heads * c.lin_value
        self.widths = [key, key, value]
        self.in_proj_qkv, self.in_proj_z = linear(c.hidden, 2 * key + value), linear(c.hidden, value)
        self.in_proj_b, self.in_proj_a = linear(c.hidden, c.lin_heads, std=0.02), linear(c.hidden, c.lin_heads, std=0.02)
        self.conv1d = CausalConv(2 * key + value)
        # Half lives from a few tokens to hundreds; the usual start forgets within a token.
        dt = torch.exp(torch.linspace(math.log(0.001), math.log(0.3), c.lin_heads))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.full((c.lin_heads,), math.log(2.0)))
        self.norm = GatedNorm(c.lin_value)
        self.out_proj = linear(value, c.hidden, std=0.5 / math.sqrt(value))

    def forward(self, x, rope):
        c = self.c
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, c.lin_heads, -1).transpose(1, 2) for t in self.conv1d(self.in_proj_qkv(x)).split(self.widths, -1))
        z = self.in_proj_z(x).view(b, n, c.lin_heads, -1)
        beta = self.in_proj_b(x).sigmoid().transpose(1, 2)
        g = (-self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)).transpose(1, 2)
        o = delta_rule(unit(q) * c.lin_key**-0.5, unit(k), v, g, beta, c.chunk)
        return self.out_proj(self.norm(o.transpose(1, 2), z).reshape(b, n, -1))


def rotate(x, rope):
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        width = c.heads * c.head_dim
        self.q_proj, self.o_proj = linear(c.hidden, 2 * width), linear(width, c.hidden, std=0.5 / math.sqrt(width))
        self.k_proj, self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim), linear(c.hidden, c.kv_heads * c.head_dim)
        self.q_norm, self.k_norm = RmsNorm(c.head_dim), RmsNorm(c.head_dim)

    def forward(self, x, rope):
        c = self.c
        b, n, _ = x.shape
        q, gate = self.q_proj(x).view(b, n, c.heads, 2 * c.head_dim).chunk(2, -1)
        k, v = (p(x).view(b, n, c.kv_heads, c.head_dim) for p in (self.k_proj, self.v_proj))
        q, k, v = self.q_norm(q).transpose(1, 2), self.k_norm(k).transpose(1, 2), v.transpose(1, 2)
        r = c.rope_dim
        q, k = (torch.cat([rotate(t[..., :r], rope), t[..., r:]], -1) for t in (q, k))
        k, v = (t.repeat_interleave(c.heads // c.kv_heads, 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o_proj((o * gate.sigmoid()).reshape(b, n, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = linear(c.hidden, c.inner), linear(c.hidden, c.inner)
        self.down_proj = linear(c.inner, c.hidden, std=0.5 / math.sqrt(c.inner))

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.kind = kind
        if kind == "lin":
            self.linear_attn = DeltaNet(c)
        else:
            self.self_attn = Attention(c)
        self.mlp, self.input_layernorm, self.post_attention_layernorm = Mlp(c), RmsNorm(c.hidden), RmsNorm(c.hidden)

    def forward(self, x, rope):
        mixer = self.linear_attn if self.kind == "lin" else self.self_attn
        x = x + mixer(self.input_layernorm(x), rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Text(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.04)
        self.layers = nn.ModuleList([Layer(c, kind) for kind in c.layers])
        self.norm = RmsNorm(c.hidden)
        j = torch.arange(c.rope_dim // 2)
        self.speed = c.rope_theta ** (-2.0 * j / c.rope_dim)
        self.axis = torch.where((j % 3 == 1) & (j < 3 * c.sections[1]), 1, torch.where((j % 3 == 2) & (j < 3 * c.sections[2]), 2, 0))

    def forward(self, x, positions):
        angle = (positions[..., self.axis].float() * self.speed).unsqueeze(1)
        rope = angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)


class VisionAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.qkv, self.proj = linear(c.v_hidden, 3 * c.v_hidden, True), linear(c.v_hidden, c.v_hidden, True)
        # The heads start out looking at a patch's eight neighbours: query and key biases that peak, through the rotary
        # embedding, at one offset each.
        size = c.v_hidden // c.v_heads
        q = size // 2
        speed = c.v_theta ** (-2.0 * torch.arange(q // 2) / q)
        offsets = [(r, k) for r in (-1, 0, 1) for k in (-1, 0, 1) if r or k]
        with torch.no_grad():
            self.qkv.weight[: 2 * c.v_hidden] *= 0.3
            for h, (dr, dc) in enumerate(offsets):
                for j in range(3):
                    for base, d in ((0, dr), (q // 2, dc)):
                        i = h * size + base + j
                        self.qkv.bias[i] = 6.0
                        self.qkv.bias[c.v_hidden + i] = 6.0 * math.cos(-d * speed[j])
                        self.qkv.bias[c.v_hidden + i + q] = 6.0 * math.sin(-d * speed[j])

    def forward(self, x, rope):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.c.v_heads, -1).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rotate(q, rope), rotate(k, rope), v)
        return self.proj(o.transpose(1, 2).reshape(b, n, -1))


class VisionMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.linear_fc1 = linear(c.v_hidden, c.v_inner, True)
        self.linear_fc2 = linear(c.v_inner, c.v_hidden, True, std=0.5 / math.sqrt(c.v_inner))

    def forward(self, x):
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(c.v_hidden, eps=1e-6), nn.LayerNorm(c.v_hidden, eps=1e-6)
        self.attn, self.mlp = VisionAttention(c), VisionMlp(c)

    def forward(self, x, rope):
        x = x + self.attn(self.norm1(x), rope)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    def __init__(self, c):
        super().__init__()
        wide = 4 * c.v_hidden
        self.norm = nn.LayerNorm(c.v_hidden, eps=1e-6)
        self.linear_fc1, self.linear_fc2 = linear(wide, wide, True), linear(wide, c.hidden, True)

    def forward(self, x):
        b, n, d = x.shape
        return self.linear_fc2(F.gelu(self.linear_fc1(self.norm(x).reshape(b, n // 4, 4 * d))))


class Vision(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.patch = linear(768, c.v_hidden, True, std=0.04)  # both halves of the checkpoint's temporal kernel, summed
        self.pos_embed = nn.Embedding(c.v_positions, c.v_hidden)
        self.blocks = nn.ModuleList([VisionBlock(c) for _ in range(c.v_depth)])
        self.merger = Merger(c)
        self.known = {}
        # A smooth start: from noise, the tower does not learn where in the picture a patch is.
        side = int(c.v_positions**0.5)
        line = torch.linspace(-1, 1, side)
        y, x = torch.meshgrid(line, line, indexing="ij")
        waves = torch.stack([x, y] + [f(k * math.pi / 2 * t) for t in (x, y) for k in (1, 2) for f in (torch.sin, torch.cos)], -1).reshape(c.v_positions, -1)
        with torch.no_grad():
            self.pos_embed.weight.normal_(std=0.02).add_((waves - waves.mean(0)) @ torch.randn(waves.shape[1], c.v_hidden) * 0.2)

    def geometry(self, grid):
        if grid not in self.known:
            gh, gw = 2 * grid[0], 2 * grid[1]
            side = int(self.c.v_positions**0.5)
            row = torch.arange(gh).view(gh // 2, 1, 2, 1).expand(-1, gw // 2, -1, 2).reshape(-1)
            col = torch.arange(gw).view(1, gw // 2, 1, 2).expand(gh // 2, -1, 2, -1).reshape(-1)

            def between(i, n):
                f = i.float() * (side - 1) / max(n - 1, 1)
                low = f.floor().long()
                return low, (low + 1).clamp(max=side - 1), f - low

            r0, r1, rf = between(row, gh)
            c0, c1, cf = between(col, gw)
            index = torch.stack([r0 * side + c0, r0 * side + c1, r1 * side + c0, r1 * side + c1], 1)
            weight = torch.stack([(1 - rf) * (1 - cf), (1 - rf) * cf, rf * (1 - cf), rf * cf], 1)
            q = self.c.v_hidden // self.c.v_heads // 2
            speed = self.c.v_theta ** (-2.0 * torch.arange(q // 2) / q)
            angle = torch.cat([row[:, None] * speed, col[:, None] * speed], 1)
            self.known[grid] = index, weight, (angle.cos(), angle.sin())
        return self.known[grid]

    def forward(self, pixels, grid):
        """pixels [B, n, 768] -> (the picture tokens [B, n / 4, hidden], the patches before the merger)."""
        index, weight, rope = self.geometry(grid)
        x = self.patch(pixels) + (self.pos_embed(index) * weight[..., None]).sum(1)
        for block in self.blocks:
            x = block(x, rope)
        return self.merger(x), x


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.visual, self.language_model = c, Vision(c), Text(c)

    def forward(self, batch):
        """Logits of the batch's answer tokens, and what the tower gave."""
        x = self.language_model.embed_tokens(batch["ids"])
        seen = None
        if "pixels" in batch:
            seen = self.visual(batch["pixels"], batch["grid"])
            x = x.masked_scatter(batch["is_picture"].unsqueeze(-1), seen[0])
        h = self.language_model(x, batch["positions"])
        return h.reshape(-1, self.c.hidden)[batch["chosen"]] @ self.language_model.embed_tokens.weight.T, seen

    def start_matched(self):
        """Starts the text side where words can find their like: attention keys equal queries, and what is read comes back
        in the space it was written in."""
        c = self.c
        with torch.no_grad():
            for layer in self.language_model.layers:
                if layer.kind == "att":
                    a = layer.self_attn
                    q = a.q_proj.weight.view(c.heads, 2, c.head_dim, c.hidden)
                    k, v = (p.weight.view(c.kv_heads, c.head_dim, c.hidden) for p in (a.k_proj, a.v_proj))
                    for h in range(c.heads):
                        g = h // (c.heads // c.kv_heads)
                        q[h, 0] = 0.9 * k[g] + 0.4 * q[h, 0]
                        a.o_proj.weight[:, h * c.head_dim : (h + 1) * c.head_dim] += 0.7 * v[g].T
                else:
                    d = layer.linear_attn
                    d.out_proj.weight += 0.7 * d.in_proj_qkv.weight[-d.widths[2] :].T


class Labels(nn.Module):
    """Heads for the dense labels; thrown away after training."""

    def __init__(self, c, kinds, colours, backgrounds):
        super().__init__()
        self.sizes = [1, kinds, colours, 5, 3]
        self.cell, self.behind = nn.Linear(c.hidden, sum(self.sizes)), nn.Linear(c.hidden, backgrounds)
        self.patch = nn.Sequential(nn.LayerNorm(c.v_hidden), nn.Linear(c.v_hidden, kinds))

    def forward(self, seen, b, words=None):
        """The loss and its readings. `words`: embedding rows of the names of kinds and of colours; then a picture token has
        to resemble the words for what it shows, and no word when it shows nothing."""
        tokens, hidden = seen
        there = b["own"] > 0
        own, kind, colour, place, rank = self.cell(tokens).split(self.sizes, -1)
        own = own[..., 0]
        kind, colour, place, rank = (t[there] for t in (kind, colour, place, rank))
        behind = self.behind(tokens.mean(1))
        covered = b["patch"] >= 0
        patch = self.patch(hidden)[covered]
        ce = F.cross_entropy
        loss = 4 * F.binary_cross_entropy_with_logits(own, b["own"]) + ce(kind, b["kind"][there]) + ce(colour, b["colour"][there])
        loss = loss + 10 * F.smooth_l1_loss(place, b["place"][there]) + 2 * ce(rank, b["rank"][there]) + 0.3 * ce(behind, b["background"]) + ce(patch, b["patch"][covered])
        reads = {}
        if words is not None:
            unit_tokens = F.rms_norm(tokens, (tokens.shape[-1],), None, 1e-6)
            for name, rows in zip(("kind", "colour"), words):
                rows = rows * (0.9 / rows.norm(dim=-1, keepdim=True))
                logits = torch.cat([unit_tokens @ rows.T, torch.full(tokens.shape[:-1] + (1,), 5.0)], -1)
                goal = torch.where(there, b[name].clamp(min=0), torch.full_like(b[name], len(rows)))
                each = ce(logits.flatten(0, 1), goal.flatten(), reduction="none").view(goal.shape)
                loss = loss + 0.5 * (each[there].mean() + each[~there].mean())
                reads["word_" + name] = (logits.argmax(-1) == goal)[there].float().mean().item()
        with torch.no_grad():
            same = lambda x, y: (x.argmax(-1) == y).float().mean().item()
            reads.update(own=((own > 0) == there).all(-1).float().mean().item(), kind=same(kind, b["kind"][there]), colour=same(colour, b["colour"][there]), rank=same(rank, b["rank"][there]),
                         xy=(place - b["place"][there])[:, 3:].abs().mean().item() / 3, background=same(behind, b["background"]), patch=same(patch, b["patch"][covered]))
        return loss, reads
