"""The small GPT's training step in PyTorch: python3 bench_torch.py THREADS STEPS [fp32|bf16] [compile]."""
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, BATCH, LENGTH = 6, 6, 384, 256, 8, 256


def gelu(x):
    try:
        return F.gelu(x, approximate="tanh")
    except TypeError:  # older versions have no tanh form on every build
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("seen", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))

    def attention(self, x):
        q, k, v = (part.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(WIDTH, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
            y = F.softmax(scores.masked_fill(~self.seen, -math.inf), -1) @ v
        return self.out(y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, y):
        h = self.norm(self.blocks(self.tokens(x) + self.places.weight))
        return F.cross_entropy((h @ self.tokens.weight.t()).view(-1, VOCABULARY), y.view(-1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(int(sys.argv[1]))
    model = GPT()
    if "compile" in sys.argv:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = (torch.randint(0, VOCABULARY, (BATCH, LENGTH)) for _ in range(2))
    for _ in range(int(sys.argv[2])):
        start = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in sys.argv):
            loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"ms {1e3 * (time.monotonic() - start):.3f}", flush=True)


if __name__ == "__main__":
    main()
