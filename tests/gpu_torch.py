"""GPT-2 124M in PyTorch on a GPU, for `./build.sh gpu-check`. gpu_torch.py speed BATCH LENGTH: milliseconds per training step,
eager and compiled in bf16, eager in fp32, and of products and attention alone. gpu_torch.py curve FOLDER BATCH LENGTH: the
largest difference between the losses that `gpu_kernels curve` wrote into the folder and PyTorch's, in bf16 under autocast,
from the same weights, on the same tokens and at the same rates, without weight decay."""
import statistics
import sys
import time

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, ROWS = 12, 12, 768, 50304, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary=VOCABULARY):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, WIDTH), nn.Embedding(ROWS, WIDTH)
        self.h = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        logits = F.linear(self.ln_f(self.h(h)), self.wte.weight)
        return F.cross_entropy(logits.view(-1, self.wte.num_embeddings), y.reshape(-1))


def median_ms(run, rounds=7, inner=1):
    times = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(inner):
            run()
        torch.cuda.synchronize()
        times.append(1e3 * (time.monotonic() - start) / inner)
    return statistics.median(times[2:])


def row(name, value, unit):
    print(f"row\t{name}\t{value:.4g}\t{unit}", flush=True)


def step_of(model, optimizer, bf16):
    def step(x, y):
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def speed(batch, length):
    x, y = (torch.randint(0, VOCABULARY, (batch, length), device="cuda") for _ in range(2))
    for bf16 in (True, False):
        for compiled in (False, True) if bf16 else (False,):
            torch.manual_seed(0)
            model = GPT().cuda()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            step = step_of(torch.compile(model) if compiled else model, optimizer, bf16)
            ms = median_ms(lambda: step(x, y))
            name = f"PyTorch {'bf16' if bf16 else 'fp32'} {'compiled' if compiled else 'eager'}"
            row(f"{name}, step", ms, "ms")
            row(f"{name}", 1e3 * batch * length / ms, "tokens/s")
    a, b = torch.randn(8192, WIDTH, device="cuda"), torch.randn(WIDTH, 4 * WIDTH, device="cuda")
    flop = 2 * 8192 * WIDTH * 4 * WIDTH
    row("PyTorch product MLP, fp32", flop / median_ms(lambda: a @ b, inner=10) * 1e-9, "TFLOP/s")
    a, b = a.bfloat16(), b.bfloat16()
    row("PyTorch product MLP, bf16", flop / median_ms(lambda: a @ b, inner=50) * 1e-9, "TFLOP/s")
    for b, h, t, d in ((8, 12, 1024, 64), (4, 16, 4096, 128)):
        q, k, v = (torch.randn(b, h, t, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        flop = 2 * b * h * t * t * d
        forward = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), inner=20)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        g = torch.randn_like(o)
        backward = median_ms(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True), inner=20)
        row(f"PyTorch attention forward B{b} H{h} D{d} T{t}, bf16", flop / forward * 1e-9, "TFLOP/s")
        row(f"PyTorch attention backward B{b} H{h} D{d} T{t}, bf16", 2.5 * flop / backward * 1e-9, "TFLOP/s")


def curve(folder, batch, length):
    lines = [[float(x) for x in line.split()] for line in open(f"{folder}/run.txt")]
    (beta1, beta2, epsilon, clip), steps = lines[0], lines[1:]
    tokens = torch.from_numpy(numpy.fromfile(f"{folder}/tokens.bin", dtype=numpy.int32)).long()
    tokens = tokens.view(len(steps), 2, batch, length).cuda()
    model = GPT(numpy.fromfile(f"{folder}/transformer.wte.weight.bin", dtype=numpy.float32).size // WIDTH).cuda()
    for name, p in model.named_parameters():
        of = name.replace("c_fc", "mlp.c_fc").replace("mlp_proj", "mlp.c_proj")
        of = of.replace("c_attn", "attn.c_attn").replace(".c_proj", ".attn.c_proj").replace("mlp.attn.", "mlp.")
        x = torch.from_numpy(numpy.fromfile(f"{folder}/transformer.{of}.bin", dtype=numpy.float32)).cuda()
        linear = name.startswith("h.") and p.dim() == 2
        with torch.no_grad():
            p.copy_(x.view(p.shape[1], p.shape[0]).t() if linear else x.view(-1, *p.shape[1:])[: p.shape[0]])
    optimizer = torch.optim.AdamW(model.parameters(), betas=(beta1, beta2), eps=epsilon, weight_decay=0.0)
    most = 0.0
    for (rate, ours), (x, y) in zip(steps, tokens):
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        most = max(most, abs(loss.item() - ours))
    row("PyTorch's last loss of the curve", loss.item(), "nats")
    row("largest distance from PyTorch's curve", most, "nats")


def main():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if sys.argv[1] == "speed":
        speed(int(sys.argv[2]), int(sys.argv[3]))
    else:
        curve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
