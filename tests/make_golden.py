#!/usr/bin/env python3
"""Makes the golden files of the tests with PyTorch, or compares them with it.

    python3 make_golden.py DIR            write the files named below into DIR
    python3 make_golden.py --check DIR    compute again and compare with the files in DIR

The committed files were made with torch 1.13.1 on a CPU. Inputs are random float32 numbers; everything is computed in
float64 and rounded once when it is stored, so a golden value is the true one to half a float32 ulp, and the distance
of a float32 implementation from it is that implementation's own error.

gpt2_tiny.safetensors, a GPT-2 with its names and shapes (x W + b, so W is (in, out)), head tied to wte:
    config.*                 layers, heads, width C, vocabulary V, sequence T, batch B (I64); clip, beta1, beta2, eps,
                             decay (F32)
    tokens, targets          (B,T) I32; target -1 is ignored
    logits, loss             (B,T,V) and one number, from the initial parameters
    transformer.*            initial parameters
    grad.transformer.*       gradients of the loss; of wte also its two uses: grad.wte.embed, grad.wte.head (V,C)
    step.lr, .loss, .norm    (3) learning rate; loss and gradient norm (before clipping) at the start of the step
    step1.transformer.*      parameters after AdamW step 1, and so step2 and step3; the same batch each time

The gradient of a key bias (the middle third of attn.c_attn.bias) is zero in exact arithmetic: softmax does not see a
constant. In float32 it is rounding noise, which AdamW blows up to a visible step: compare the other two thirds.

llama_tiny.safetensors, the same for a Llama with an untied head: config.kv_heads and hidden besides, model.* and
lm_head.weight instead of transformer.*, no wte. Names and formulas are Hugging Face's; the *_proj.weight are (in, out),
transposed against it, as x W.
cnn_tiny.safetensors, the same for two convolutions and a linear layer; its tokens are the images (B,64), its targets the
classes (B,1).

moe_tiny.safetensors, the same for a smaller GPT-2 with a mixture of experts in the place of each MLP, some tokens dropped:
config.experts, active, capacity and balance besides; transformer.h.N.mlp.gate.weight and .experts.*; auxiliary, the
load-balance losses times their coefficient, which are in the gradients and not in the losses; and dropped, the choices
that found no room, of each block (I64). llama_moe_tiny.safetensors, the same for a Llama like Mixtral: gated experts, and
capacity 0, so nothing is dropped. llama_moe_context.safetensors, the same with a capacity and config.context: each of so
many context shards routes, drops and balances its own part of the sequences.

gpt2_bf16.safetensors, and gpt2_fp16.safetensors with the loss scaled by 1024: the logits and the losses of 50 steps, at a constant rate, of the model of gpt2_tiny in float32 under
torch.autocast(bfloat16 or float16); scores are upcast explicitly before they are scaled and masked. And a linear layer and a GELU by
themselves, as in ops.safetensors, without gradients.

ops.safetensors, reduce.safetensors, nn.safetensors and elementwise.safetensors, for a case named N: N.<input>, N.out, a
random N.w shaped like N.out, and N.grad.<input>, the gradients of sum(out * w); what has no gradient has no N.grad. OPS,
REDUCE, nn_cases and ELEMENTWISE below say what each computes; nn.safetensors also holds the cases' windows.

optim.safetensors: w (7,90), a gradient of each step g1, g2, g3 like it, rate (3), and for a case named N the weights
N.step1 to N.step3. OPTIMIZERS below lists the cases; those that torch does not have are computed with NumPy from their
papers' formulas.
"""
import argparse
import json
import math
import os
import random
import struct
import sys

import numpy
import torch
import torch.nn.functional as F

LAYERS, HEADS, C, V, T, B = 2, 2, 32, 61, 12, 4
LEARNING_RATES, CLIP, BETAS, EPS, DECAY = (1e-3, 8e-4, 5e-4), 1.0, (0.9, 0.95), 1e-8, 0.1


# ---- numbers -----------------------------------------------------------------------------------

class Source:
    """Random tensors that do not depend on the version of torch: random.random() is the same everywhere."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def uniform(self, shape, scale=1.0, centre=0.0):
        """In centre +- scale: float32 numbers, as float64."""
        values = [centre + scale * (2.0 * self.random() - 1.0) for _ in range(math.prod(shape))]
        return torch.tensor(values, dtype=torch.float32).double().reshape(shape)

    def integers(self, shape, n):
        return torch.tensor([int(self.random() * n) for _ in range(math.prod(shape))], dtype=torch.int32).reshape(shape)


DTYPES = {"F32": torch.float32, "I32": torch.int32, "I64": torch.int64}


def number(value):
    return torch.tensor([value], dtype=torch.int64 if isinstance(value, int) else torch.float64)


def stored(tensor):
    """As it is written: float64 rounds to float32, integers stay."""
    tensor = tensor.detach().contiguous()
    return tensor.float() if tensor.is_floating_point() else tensor


def write(path, tensors):
    """Safetensors: 8 bytes little-endian header length, a JSON header padded to 8, the data."""
    header, data = {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].dtype != torch.int64):
        tensor = stored(tensor)
        dtype = next(key for key, value in DTYPES.items() if value == tensor.dtype)
        piece = tensor.numpy().tobytes()
        offsets = [len(data), len(data) + len(piece)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        data += piece
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    return {name: torch.frombuffer(bytearray(data[slice(*entry["data_offsets"])]),
                                   dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


# ---- GPT-2 -------------------------------------------------------------------------------------

def initial_parameters(source, V=V, C=C):
    """HF's names and shapes. Larger than a real initialisation and with biases, so that every term is visible."""
    weight = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (T, C)}
    norms = ["transformer.ln_f"]
    for i in range(LAYERS):
        block = f"transformer.h.{i}."
        weight.update({block + "attn.c_attn.weight": (C, 3 * C), block + "attn.c_proj.weight": (C, C),
                       block + "mlp.c_fc.weight": (C, 4 * C), block + "mlp.c_proj.weight": (4 * C, C)})
        norms += [block + "ln_1", block + "ln_2"]
    p = {name: source.uniform(shape, 0.3) for name, shape in weight.items()}
    for name, shape in weight.items():
        if ".h." in name:
            p[name.replace("weight", "bias")] = source.uniform(shape[1:], 0.1)
    for name in norms:
        p[name + ".weight"] = source.uniform((C,), 0.2, 1.0)
        p[name + ".bias"] = source.uniform((C,), 0.1)
    return {name: tensor.requires_grad_() for name, tensor in p.items()}


def attention(q, k, v, causal):
    """(B,H,T,D) each; scale 1/sqrt(D)."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return torch.softmax(scores, -1) @ v


def gpt2(p, tokens, embed, head, mixture=None):
    """(B,T) tokens to (B,T,V) logits. `embed` and `head` are the two uses of wte (V,C); mixture(name, x) is the MLP."""
    C = embed.shape[1]

    def norm(x, name):
        return F.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def heads(x):
        return x.reshape(B, T, HEADS, C // HEADS).transpose(1, 2)

    x = embed[tokens.long()] + p["transformer.wpe.weight"]
    for i in range(LAYERS):
        block = f"transformer.h.{i}."
        q, k, v = linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(C, -1)
        mixed = attention(heads(q), heads(k), heads(v), True).transpose(1, 2).reshape(B, T, C)
        x = x + linear(mixed, block + "attn.c_proj")
        h = norm(x, block + "ln_2")
        if mixture:
            x = x + mixture(block + "mlp.", h)
        else:
            x = x + linear(F.gelu(linear(h, block + "mlp.c_fc"), approximate="tanh"), block + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ head.T


def cross_entropy(logits, targets):
    """Mean over the targets that are not -1."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long(), ignore_index=-1)


def training_step(p, tokens, targets):
    """One forward and backward pass; gradients are left in p. Returns what it computed."""
    for tensor in p.values():
        tensor.grad = None
    embed, head = p["transformer.wte.weight"] * 1.0, p["transformer.wte.weight"] * 1.0
    embed.retain_grad()
    head.retain_grad()
    logits = gpt2(p, tokens, embed, head)
    loss = cross_entropy(logits, targets)
    loss.backward()
    norm = math.sqrt(sum(float((tensor.grad ** 2).sum()) for tensor in p.values()))
    return logits, loss, norm, {"grad.wte.embed": embed.grad, "grad.wte.head": head.grad}


def make_steps(out, p, tokens, targets, step_once):
    """Fills `out` with what three AdamW steps of step_once(p, tokens, targets) -> (logits, loss, norm, more) give."""
    if targets.shape[1] == T:
        targets[0, 3] = targets[2, 0] = targets[2, 1] = -1
        targets[3, 5:] = -1
    out.update(tokens=tokens, targets=targets, **{name: tensor.detach().clone() for name, tensor in p.items()})
    decayed = [tensor for tensor in p.values() if tensor.dim() >= 2]
    plain = [tensor for tensor in p.values() if tensor.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}],
                                  betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step, rate in enumerate(LEARNING_RATES):
        logits, loss, norm, more = step_once(p, tokens, targets)
        if step == 0:
            out.update({"logits": logits, "loss": loss.reshape(1), **more})
            out.update({"grad." + name: tensor.grad.clone() for name, tensor in p.items()})
        for tensor in p.values():
            tensor.grad *= min(1.0, CLIP / norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(float(loss))
        norms.append(norm)
        out.update({f"step{step + 1}.{name}": tensor.detach().clone() for name, tensor in p.items()})
    for name, values in ("lr", LEARNING_RATES), ("loss", losses), ("norm", norms):
        out["step." + name] = torch.tensor(values, dtype=torch.float64)
    return out


def configuration():
    return {"config.layers": number(LAYERS), "config.heads": number(HEADS), "config.width": number(C),
            "config.vocabulary": number(V), "config.sequence": number(T), "config.batch": number(B),
            "config.clip": number(CLIP), "config.beta1": number(BETAS[0]), "config.beta2": number(BETAS[1]),
            "config.eps": number(EPS), "config.decay": number(DECAY)}


def make_gpt2():
    source = Source(2024)
    tokens, targets = source.integers((B, T), V), source.integers((B, T), V)
    return make_steps(configuration(), initial_parameters(source), tokens, targets, training_step)


# ---- GPT-2 in mixed precision ------------------------------------------------------------------

def mixed_attention(q, k, v):
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v


def mixed_gpt2(p, tokens):
    """gpt2() by torch's own layers, so that autocast chooses what is computed in bfloat16."""
    def norm(x, name):
        return F.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"].T, p[name + ".bias"])

    def heads(x):
        return x.reshape(B, T, HEADS, C // HEADS).transpose(1, 2)

    x = p["transformer.wte.weight"][tokens.long()] + p["transformer.wpe.weight"]
    for i in range(LAYERS):
        block = f"transformer.h.{i}."
        q, k, v = linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(C, -1)
        mixed = mixed_attention(heads(q), heads(k), heads(v)).transpose(1, 2).reshape(B, T, C)
        x = x + linear(mixed, block + "attn.c_proj")
        h = F.gelu(linear(norm(x, block + "ln_2"), block + "mlp.c_fc"), approximate="tanh")
        x = x + linear(h, block + "mlp.c_proj")
    return F.linear(norm(x, "transformer.ln_f"), p["transformer.wte.weight"])


MIXED_STEPS, MIXED_RATE = 50, 1e-3


def make_mixed(dtype=torch.bfloat16, scale=1.0):
    start = make_gpt2()
    tokens, targets = start["tokens"], start["targets"]
    p = {name: tensor.float().requires_grad_() for name, tensor in start.items() if name.startswith("transformer.")}
    optimizer = torch.optim.AdamW([{"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": DECAY},
                                   {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0}],
                                  lr=MIXED_RATE, betas=BETAS, eps=EPS)
    out, losses = {}, []
    for step in range(MIXED_STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            logits = mixed_gpt2(p, tokens)
        loss = cross_entropy(logits.float(), targets)
        (loss * scale).backward()
        for tensor in p.values():
            tensor.grad /= scale
        torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP)
        optimizer.step()
        losses.append(float(loss))
        if not step:
            out["logits"] = logits.float()
    source = Source(31)
    x, w, b = source.uniform((33, 70), 2.0).float(), source.uniform((70, 45), 0.5).float(), source.uniform((45,), 0.5).float()
    with torch.autocast("cpu", dtype=dtype):
        y = F.linear(x, w.T, b)
    t = y.double()  # x (1 + tanh u) / 2 is x sigmoid(2u), which does not cancel where x is negative
    h = (t * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (t + 0.044715 * t ** 3))).to(dtype)
    out.update({"losses": torch.tensor(losses, dtype=torch.float64), "linear.x": x, "linear.w": w, "linear.b": b,
                "linear.out": y.float(), "gelu.x": y.float(), "gelu.out": h.float()})
    return out


# ---- Llama -------------------------------------------------------------------------------------

WIDTH, WORDS, LLAMA_HEADS, KV_HEADS, HIDDEN = 16, 37, 4, 2, 40
NORM_EPS, ROPE_BASE, SCALING = 1e-6, 500.0, (8.0, 1.0, 4.0, 16)


def llama_parameters(source, words=WORDS, width=WIDTH):
    kv = width // LLAMA_HEADS * KV_HEADS
    matrices = {"self_attn.q_proj": (width, width), "self_attn.k_proj": (width, kv), "self_attn.v_proj": (width, kv),
                "self_attn.o_proj": (width, width), "mlp.gate_proj": (width, HIDDEN), "mlp.up_proj": (width, HIDDEN),
                "mlp.down_proj": (HIDDEN, width)}
    p = {name: source.uniform((words, width), 0.3) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for i in range(LAYERS):
        block = f"model.layers.{i}."
        for name, shape in matrices.items():
            p[block + name + ".weight"] = source.uniform(shape, 0.3)
        for name in "input_layernorm", "post_attention_layernorm":
            p[block + name + ".weight"] = source.uniform((width,), 0.2, 1.0)
    p["model.norm.weight"] = source.uniform((width,), 0.2, 1.0)
    return {name: tensor.requires_grad_() for name, tensor in p.items()}


def llama(p, tokens, mixture=None):
    """(B,T) tokens to (B,T,V) logits; mixture(name, x) stands in for the MLPs."""
    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + NORM_EPS) * p[name + ".weight"]

    def linear(x, name):
        return x @ p[name + ".weight"]

    x = p["model.embed_tokens.weight"][tokens.long()]
    for i in range(LAYERS):
        block = f"model.layers.{i}."
        h = norm(x, block + "input_layernorm")
        q = rope(linear(h, block + "self_attn.q_proj"), LLAMA_HEADS, ROPE_BASE, 0, SCALING)
        k = rope(linear(h, block + "self_attn.k_proj"), KV_HEADS, ROPE_BASE, 0, SCALING)
        v = linear(h, block + "self_attn.v_proj")
        x = x + linear(grouped_attention(q, k, v, KV_HEADS, True, heads=LLAMA_HEADS), block + "self_attn.o_proj")
        h = norm(x, block + "post_attention_layernorm")
        if mixture:
            x = x + mixture(block + "mlp.", h)
            continue
        x = x + linear(F.silu(linear(h, block + "mlp.gate_proj")) * linear(h, block + "mlp.up_proj"),
                       block + "mlp.down_proj")
    return norm(x, "model.norm") @ p["lm_head.weight"].T


def llama_step(p, tokens, targets):
    for tensor in p.values():
        tensor.grad = None
    logits = llama(p, tokens)
    loss = cross_entropy(logits, targets)
    loss.backward()
    return logits, loss, math.sqrt(sum(float((tensor.grad ** 2).sum()) for tensor in p.values())), {}


def llama_configuration(words, width, hidden):
    return {**configuration(), "config.heads": number(LLAMA_HEADS), "config.width": number(width),
            "config.vocabulary": number(words), "config.kv_heads": number(KV_HEADS),
            "config.hidden": number(hidden), "config.norm_eps": number(NORM_EPS), "config.rope_base": number(ROPE_BASE),
            "config.rope_scaling": torch.tensor(SCALING, dtype=torch.float64)}


def make_llama():
    source = Source(2025)
    out = llama_configuration(WORDS, WIDTH, HIDDEN)
    tokens, targets = source.integers((B, T), WORDS), source.integers((B, T), WORDS)
    return make_steps(out, llama_parameters(source), tokens, targets, llama_step)


# ---- single operations -------------------------------------------------------------------------

def op_cases(source):
    """Yields (name, function, inputs): dictionaries of tensors by argument name; integer inputs have no gradient."""
    def u(*shape, scale=1.0, centre=0.0):
        return source.uniform(shape, scale, centre)

    yield ("layernorm", lambda x, weight, bias: F.layer_norm(x, (33,), weight, bias, 1e-5),
           dict(x=u(4, 7, 33, scale=2.0, centre=0.5), weight=u(33, scale=0.5, centre=1.0), bias=u(33)))
    yield "gelu", lambda x: F.gelu(x, approximate="tanh"), dict(x=u(301, scale=6.0))
    yield "softmax", lambda x: torch.softmax(x, -1), dict(x=u(5, 45, scale=8.0))
    for kind in "causal", "full":
        yield (f"attention.{kind}", lambda q, k, v, kind=kind: attention(q, k, v, kind == "causal"),
               dict(q=u(2, 3, 7, 5, scale=2.0), k=u(2, 3, 7, 5, scale=2.0), v=u(2, 3, 7, 5)))
    targets = source.integers((9,), 61)
    targets[2] = targets[7] = -1
    yield ("cross_entropy", lambda logits, targets: cross_entropy(logits, targets).reshape(1),
           dict(logits=u(9, 61, scale=4.0), targets=targets))
    tokens = source.integers((4, 9), 13)
    yield "embedding", lambda table, tokens: table[tokens.long()], dict(table=u(13, 11), tokens=tokens)
    for name, shape in ("same", (2, 5, 7)), ("c", (7,)), ("tc", (5, 7)), ("b1c", (2, 1, 7)):
        yield f"add.{name}", lambda a, b: a + b, dict(a=u(2, 5, 7), b=u(*shape))
        yield f"mul.{name}", lambda a, b: a * b, dict(a=u(2, 5, 7), b=u(*shape))
    for name, axes in ("0", (0,)), ("1", (1,)), ("2", (2,)), ("02", (0, 2)), ("012", (0, 1, 2)):
        yield f"sum.{name}", lambda x, axes=axes: x.sum(axes).reshape(-1), dict(x=u(3, 5, 37))
        yield f"mean.{name}", lambda x, axes=axes: x.mean(axes).reshape(-1), dict(x=u(3, 5, 37))
        yield f"max.{name}", lambda x, axes=axes: x.amax(axes).reshape(-1), dict(x=u(3, 5, 37))
    for batch in (), (2, 3):
        for ta in "n", "t":
            for tb in "n", "t":
                a, b = (5, 33) if ta == "n" else (33, 5), (33, 9) if tb == "n" else (9, 33)
                yield (("matmul." if batch else "matmul2d.") + ta + tb,
                       lambda a, b, ta=ta, tb=tb: (a if ta == "n" else a.mT) @ (b if tb == "n" else b.mT),
                       dict(a=u(*batch, *a), b=u(*batch, *b)))
    for order in (1, 0), (2, 0, 1), (0, 2, 1, 3):
        yield ("permute." + "".join(map(str, order)), lambda x, order=order: x.permute(order),
               dict(x=u(*(2, 5, 3, 7)[:len(order)])))
    yield "slice", lambda x: x[1:3, :, 2:6], dict(x=u(4, 5, 7))


# What each case computes; (..) is the shape of the first input.
OPS = """
layernorm       over the last axis of (4,7,33), eps 1e-5, weight and bias (33)
gelu            tanh form, (301)
softmax         over the last axis of (5,45)
attention.K     q, k, v (B 2, H 3, T 7, D 5), scale 1/sqrt(D), K = causal, full
cross_entropy   logits (9,61), targets (9), mean over targets that are not -1; out is (1)
embedding       table (13,11), tokens (4,9)
add.S, mul.S    a (2,5,7) with b: same (2,5,7), c (7), tc (5,7), b1c (2,1,7)
sum.A, mean.A, max.A    (3,5,37) over the axes A: 0, 1, 2, 02, 012; out is flat
matmul2d.XY     a (5,33) or, X = t, its transpose (33,5); b (33,9) or, Y = t, (9,33)
matmul.XY       the same with a batch (2,3) in front of both
permute.ORDER   axis i of out is axis ORDER[i] of x: (2,5), (2,5,3), (2,5,3,7)
slice           x (4,5,7): [1:3, :, 2:6]
"""


def given(x, mean, var, weight, bias, eps):
    """F.batch_norm of given statistics, which refuses a gradient of theirs."""
    mean, var, weight, bias = (v.reshape((-1,) + (1,) * (x.dim() - 2)) for v in (mean, var, weight, bias))
    return (x - mean) / (var + eps).sqrt() * weight + bias


def reduce_cases(source):
    """The same for reductions, normalisations, losses, shapes, indices and casts. log_softmax, cumsum, scatter_add, pad,
    batchnorm and given are no ops of the library (any more); without them the numbers after them would be others."""
    def u(*shape, scale=1.0, centre=0.0):
        return source.uniform(shape, scale, centre)

    for name, axes in ("0", (0,)), ("2", (2,)), ("02", (0, 2)), ("012", (0, 1, 2)):
        yield f"min.{name}", lambda x, axes=axes: x.amin(axes).reshape(-1), dict(x=u(3, 5, 7))
        yield (f"var.{name}", lambda x, axes=axes: x.var(axes, unbiased=False).reshape(-1),
               dict(x=u(3, 5, 7, centre=2.0)))
        yield f"unbiased.{name}", lambda x, axes=axes: x.var(axes, unbiased=True).reshape(-1), dict(x=u(3, 5, 7))
        yield f"logsumexp.{name}", lambda x, axes=axes: x.logsumexp(axes).reshape(-1), dict(x=u(3, 5, 7, scale=9.0))
    for axis in 0, 1, 2:
        yield f"softmax.{axis}", lambda x, axis=axis: torch.softmax(x, axis), dict(x=u(3, 5, 7, scale=6.0))
        yield f"log_softmax.{axis}", lambda x, axis=axis: torch.log_softmax(x, axis), dict(x=u(3, 5, 7, scale=6.0))
        yield f"cumsum.{axis}", lambda x, axis=axis: x.cumsum(axis), dict(x=u(3, 5, 7))
        shape = [3, 5, 7]
        shape[axis] = 4
        index = source.integers(tuple(shape), (3, 5, 7)[axis])
        yield (f"gather.{axis}", lambda x, index, axis=axis: x.gather(axis, index.long()),
               dict(x=u(3, 5, 7), index=index))
        yield (f"scatter_add.{axis}", lambda base, x, index, axis=axis: base.scatter_add(axis, index.long(), x),
               dict(base=u(3, 5, 7), x=u(*shape), index=index))
        yield (f"concat.{axis}", lambda a, b, axis=axis: torch.cat((a, b, a), axis), dict(a=u(*shape), b=u(3, 5, 7)))
    yield "top_k", lambda x: x.topk(3, -1)[0], dict(x=u(5, 11))
    yield "pad", lambda x: F.pad(x, (0, 0, 2, 1)), dict(x=u(3, 5, 7))
    yield ("rmsnorm", lambda x, weight: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight,
           dict(x=u(6, 33, scale=2.0), weight=u(33, scale=0.5, centre=1.0)))
    for name, shape in ("2", (6, 5)), ("3", (4, 5, 3)), ("4", (3, 5, 2, 4)):
        yield (f"batchnorm.{name}", lambda x, weight, bias: F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-3),
               dict(x=u(*shape, scale=2.0, centre=0.5), weight=u(5, scale=0.5, centre=1.0), bias=u(5)))
        yield (f"given.{name}", lambda x, mean, var, weight, bias: given(x, mean, var, weight, bias, 1e-3),
               dict(x=u(*shape), mean=u(5), var=u(5, scale=0.5, centre=1.0), weight=u(5), bias=u(5)))
    targets = source.integers((8,), 23)
    targets[2] = targets[7] = -1
    yield ("smooth", lambda logits, targets: F.cross_entropy(logits, targets.long(), ignore_index=-1,
                                                             label_smoothing=0.1).reshape(1),
           dict(logits=u(8, 23, scale=4.0), targets=targets))
    yield "mse", lambda x, target: F.mse_loss(x, target).reshape(1), dict(x=u(4, 7), target=u(4, 7))
    yield ("bce", lambda x, target: F.binary_cross_entropy_with_logits(x, target).reshape(1),
           dict(x=u(4, 7, scale=12.0), target=u(4, 7, scale=0.5, centre=0.5)))
    half = torch.float16
    for name, dtype, scale in ("bf16", torch.bfloat16, 3.0), ("f16", half, 3.0), ("f16.tiny", half, 6e-5):
        yield (f"cast.{name}", lambda x, dtype=dtype: x + (x.detach().float().to(dtype).double() - x.detach()),
               dict(x=u(41, scale=scale)))


REDUCE = """
min.A, var.A, unbiased.A, logsumexp.A    (3,5,7) over the axes A: 0, 2, 02, 012; out is flat
softmax.A, log_softmax.A, cumsum.A       (3,5,7) along axis A
gather.A        x (3,5,7), index like x but 4 along axis A
scatter_add.A   base (3,5,7); x and index like it but 4 along axis A
concat.A        a, b, a along axis A; b (3,5,7), a like it but 4 along A
top_k           values of the 3 largest, (5,11)
pad             (3,5,7), 2 rows of zeros before and 1 after axis 1
rmsnorm         over the last axis of (6,33), eps 1e-5
batchnorm.D     (6,5), (4,5,3), (3,5,2,4) for D = 2, 3, 4; batch statistics, eps 1e-3
given.D         the same with given mean and var (5)
smooth          cross-entropy, logits (8,23), smoothing 0.1, mean over targets that are not -1; out is (1)
mse, bce        means over (4,7); bce with logits; out is (1)
cast.T          (41) rounded to the type and back; tiny: mostly subnormal. The gradient passes unchanged (PyTorch's own
                cast rounds it to the type too)
"""


def elementwise_cases(source):
    """Like op_cases. gelu_erf, softplus, log1p, erf, sin, cos, sign, floor, ceil, round, pow, select, eq, ne, lt, le and gt
    are no functions of the library (any more); without them the numbers after them would be others."""
    def u(*shape, scale=1.0, centre=0.0):
        return source.uniform(shape, scale, centre)

    def detached(function):
        return lambda x: function(x).detach()

    positive = dict(scale=4.0, centre=4.1)
    unary = {
        "gelu_erf": (F.gelu, dict(scale=6.0)), "silu": (F.silu, dict(scale=20.0)),
        "sigmoid": (torch.sigmoid, dict(scale=20.0)), "relu": (F.relu, {}), "abs": (torch.abs, {}),
        "softplus": (lambda x: F.softplus(x, threshold=1000.0), dict(scale=20.0)),
        "square": (torch.square, dict(scale=3.0)), "reciprocal": (torch.reciprocal, positive),
        "log1p": (torch.log1p, dict(scale=0.9)),
        "erf": (torch.erf, dict(scale=4.0)), "sin": (torch.sin, dict(scale=100.0)),
        "cos": (torch.cos, dict(scale=100.0)),
        "clamp": (lambda x: x.clamp(-0.5, 0.75), {}), "sign": (detached(torch.sign), {}),
        "floor": (detached(torch.floor), dict(scale=5.0)), "ceil": (detached(torch.ceil), dict(scale=5.0)),
        "round": (detached(torch.round), dict(scale=5.0)),
    }
    for name, (function, place) in unary.items():
        yield name, lambda x, function=function: function(x), dict(x=u(61, **place))
    for name, shape in ("same", (2, 5, 7)), ("c", (7,)), ("b1c", (2, 1, 7)), ("t1", (5, 1)):
        yield f"pow.{name}", lambda a, b: a ** b, dict(a=u(2, 5, 7, **positive), b=u(*shape, scale=3.0))
        yield f"maximum.{name}", lambda a, b: torch.maximum(a, b), dict(a=u(2, 5, 7), b=u(*shape))
        yield f"minimum.{name}", lambda a, b: torch.minimum(a, b), dict(a=u(2, 5, 7), b=u(*shape))
        yield (f"select.{name}", lambda mask, a, b: torch.where(mask != 0, a, b),
               dict(mask=source.integers((5, 1) if name == "c" else shape, 2), a=u(2, 5, 7), b=u(*shape)))
    for name in "eq", "ne", "lt", "le", "gt", "ge":
        yield (name, lambda a, b, name=name: getattr(torch, name)(a, b).double(),
               dict(a=source.integers((5, 7), 3).double(), b=source.integers((7,), 3).double()))


# (..) is the shape of the first input.
ELEMENTWISE = """
gelu_erf .. round   of x (61); softplus without a threshold, clamp to [-0.5, 0.75]; sign to round have no gradient
pow.S, maximum.S, minimum.S    a (2,5,7) with b: same (2,5,7), c (7), b1c (2,1,7), t1 (5,1)
select.S            mask != 0 ? a : b, mask I32 of b's shape or, S = c, (5,1)
eq, ne, lt, le, gt, ge         a (5,7) with b (7), whole numbers 0 to 2; no gradient
"""


def make_cases(cases, seed):
    source, out = Source(seed), {}
    for name, function, inputs in cases(source):
        real = {key: tensor.requires_grad_() for key, tensor in inputs.items() if tensor.is_floating_point()}
        result = function(**inputs)
        w = source.uniform(tuple(result.shape))
        out.update({f"{name}.{key}": tensor for key, tensor in inputs.items()})
        out.update({f"{name}.out": result, f"{name}.w": w})
        if not result.requires_grad:
            continue
        (result * w).sum().backward()
        out.update({f"{name}.grad.{key}": tensor.grad for key, tensor in real.items()})
    return out


# ---- layers of networks --------------------------------------------------------------------------

def grouped_attention(q, k, v, kv_heads, causal, mask=None, heads=4):
    """(B,T,H*D), (B,S,kv_heads*D): every key head serves heads / kv_heads query heads. A row that sees nothing is 0."""
    def split(x, n):
        return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2)

    q, k, v = split(q, heads), split(k, kv_heads), split(v, kv_heads)
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    t, s = q.shape[2], k.shape[2]
    seen = torch.ones(t, s, dtype=torch.bool)
    if causal:
        seen = seen.tril(s - t)
    if mask is not None:
        seen = seen & (mask.reshape(-1, 1, t, s) != 0)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    blind = ~seen.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0.0), -1) * ~blind
    out = weights @ v
    return out.transpose(1, 2).reshape(out.shape[0], t, -1)


def rope(x, heads, base, offset, scaling=None):
    """The formula of Hugging Face's Llama: x cos + rotate_half(x) sin."""
    batch, t, width = x.shape
    d = width // heads
    frequency = base ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    if scaling:
        factor, low, high, original = scaling
        wave = 2 * math.pi / frequency
        slowed = torch.where(wave > original / low, frequency / factor, frequency)
        smooth = (original / wave - low) / (high - low)
        between = ~(wave < original / high) * ~(wave > original / low)
        frequency = torch.where(between, (1 - smooth) * slowed / factor + smooth * slowed, slowed)
    angle = torch.arange(offset, offset + t, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat((angle, angle), -1)[:, None]
    x = x.reshape(batch, t, heads, d)
    turned = torch.cat((-x[..., d // 2:], x[..., :d // 2]), -1)
    return (x * angle.cos() + turned * angle.sin()).reshape(batch, t, width)


def nn_cases(source, config):
    """As op_cases; what else an op is told goes into config: N.attend (key heads, causal), N.stride and so on (I64)."""
    def u(*shape, scale=1.0):
        return source.uniform(shape, scale)

    for name, t, s, kv, causal, mask in (("full", 5, 9, 4, 0, None), ("causal", 5, 9, 2, 1, None),
                                         ("cache", 1, 9, 2, 1, None), ("mask", 6, 7, 1, 0, (6, 7)),
                                         ("masks", 6, 7, 2, 1, (2, 6, 7))):
        inputs = dict(q=u(2, t, 20, scale=2.0), k=u(2, s, 5 * kv, scale=2.0), v=u(2, s, 5 * kv))
        if mask:
            inputs["mask"] = source.integers(mask, 3)
            inputs["mask"][..., 2, :] = 0
        config[f"attend.{name}.attend"] = (kv, causal)
        yield (f"attend.{name}", lambda q, k, v, mask=None, kv=kv, causal=causal:
               grouped_attention(q, k, v, kv, causal, mask), inputs)
    yield "rope.plain", lambda x: rope(x, 2, 10000.0, 7), dict(x=u(2, 6, 20))
    yield "rope.llama3", lambda x: rope(x, 2, 10000.0, 7, (8.0, 1.0, 4.0, 16)), dict(x=u(2, 6, 20))
    for name, c, o, groups, x, k, stride, padding, dilation in (
            ("conv2d.same", 3, 5, 1, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
            ("conv2d.stride", 4, 6, 2, (7, 8), (3, 2), (2, 3), (1, 0), (1, 2)),
            ("conv2d.depthwise", 4, 4, 4, (5, 5), (3, 3), (1, 1), (2, 1), (2, 1)),
            ("conv1d.causal", 3, 4, 1, (12,), (4,), (1,), (3,), (1,)),
            ("conv1d.stride", 2, 3, 1, (11,), (3,), (2,), (1,), (2,))):
        config.update({f"{name}.stride": stride, f"{name}.padding": padding, f"{name}.dilation": dilation,
                       f"{name}.groups": (groups,)})
        function = F.conv2d if len(x) == 2 else F.conv1d
        yield (name, lambda x, weight, bias, f=function, s=stride, p=padding, d=dilation, n=groups:
               f(x, weight, bias, s, p, d, n), dict(x=u(2, c, *x), weight=u(o, c // groups, *k), bias=u(o)))
    for name, x, k, stride, padding in (("2d", (7, 8), (3, 2), (2, 2), (1, 1)), ("1d", (11,), (3,), (2,), (1,))):
        for kind in "max", "avg":
            config.update({f"{kind}_pool.{name}.size": k, f"{kind}_pool.{name}.stride": stride,
                           f"{kind}_pool.{name}.padding": padding})
            function = getattr(F, f"{kind}_pool{name}")
            yield (f"{kind}_pool.{name}", lambda x, f=function, k=k, s=stride, p=padding: f(x, k, s, p),
                   dict(x=u(2, 3, *x)))
    for name, a, b in (("vector_matrix", (5,), (2, 5, 3)), ("matrix_vector", (2, 3, 5), (5,)),
                       ("broadcast", (2, 1, 3, 5), (4, 5, 2)), ("left", (3, 5), (2, 5, 4))):
        yield f"matmul.{name}", lambda a, b: a @ b, dict(a=u(*a), b=u(*b))


def make_nn():
    config = {}
    out = make_cases(lambda source: nn_cases(source, config), 11)
    return {**{name: torch.tensor(value, dtype=torch.int64) for name, value in config.items()}, **out}


# ---- optimizers --------------------------------------------------------------------------------

OPTIMIZERS = {  # weight decay 0.1, betas 0.9 and 0.95 (Lion 0.99), epsilon 1e-8
    "sgd": lambda p: torch.optim.SGD(p, 1.0, weight_decay=DECAY),
    "momentum": lambda p: torch.optim.SGD(p, 1.0, momentum=0.9, weight_decay=DECAY),
    "nesterov": lambda p: torch.optim.SGD(p, 1.0, momentum=0.9, weight_decay=DECAY, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 1.0, BETAS, EPS, weight_decay=DECAY),
    "adamw": lambda p: torch.optim.AdamW(p, 1.0, BETAS, EPS, weight_decay=DECAY),
    "lion": None,
}


def torch_steps(make, w, gradients, rates):
    p = w.clone().requires_grad_()
    optimizer = make([p])
    for g, rate in zip(gradients, rates):
        p.grad = g.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        yield p.detach().clone()


def lion_steps(w, gradients, rates):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 2."""
    w, m = w.numpy().copy(), 0.0
    for g, rate in zip(gradients, rates):
        g = g.numpy()
        w = w - rate * (numpy.sign(0.9 * m + 0.1 * g) + DECAY * w)
        m = 0.99 * m + 0.01 * g
        yield torch.from_numpy(w)


def make_optim():
    source = Source(11)
    w = source.uniform((7, 90))
    # gradients of many sizes, some zero
    sizes = 10.0 ** (-4.0 * source.uniform((7, 90), 0.5, 0.5))
    sizes[2, 5:9] = 0.0
    gradients = [(source.uniform((7, 90)) * sizes).float().double() for _ in LEARNING_RATES]
    rates = [10.0 * rate for rate in LEARNING_RATES]
    out = {"w": w, "rate": torch.tensor(rates, dtype=torch.float64)}
    out.update({f"g{step}": g for step, g in enumerate(gradients, 1)})
    for name, make in OPTIMIZERS.items():
        steps = torch_steps(make, w, gradients, rates) if make else lion_steps(w, gradients, rates)
        out.update({f"{name}.step{step}": result for step, result in enumerate(steps, 1)})
    return out


# ---- a convolutional network -------------------------------------------------------------------

SIDE, CLASSES = 8, 5


def cnn(p, images):
    """(B,64) images to (B,5) logits."""
    def convolve(x, name, stride):
        return F.conv2d(x, p[name + ".weight"], p[name + ".bias"], stride=stride, padding=1)

    x = F.gelu(convolve(images.reshape(-1, 1, SIDE, SIDE), "features.first", 1), approximate="tanh")
    x = torch.relu(convolve(F.max_pool2d(x, 2), "features.second", 2))
    return x.flatten(1) @ p["head.out.weight"] + p["head.out.bias"]


def cnn_step(p, images, labels):
    for tensor in p.values():
        tensor.grad = None
    logits = cnn(p, images)
    loss = cross_entropy(logits, labels)
    loss.backward()
    return logits, loss, math.sqrt(sum(float((tensor.grad ** 2).sum()) for tensor in p.values())), {}


def make_cnn():
    source = Source(2027)
    shapes = {"features.first": (6, 1, 3, 3), "features.second": (8, 6, 3, 3), "head.out": (32, CLASSES)}
    p = {}
    for name, shape in shapes.items():
        p[name + ".weight"] = source.uniform(shape, 0.4).requires_grad_()
        p[name + ".bias"] = source.uniform((shape[1] if len(shape) == 2 else shape[0],), 0.2).requires_grad_()
    images, labels = source.uniform((B, SIDE * SIDE)), source.integers((B, 1), CLASSES)
    return make_steps({"config.decay": number(DECAY)}, p, images, labels, cnn_step)


# ---- mixture of experts ------------------------------------------------------------------------

EXPERTS, ACTIVE, CAPACITY, BALANCE, MOE_WIDTH, MOE_HIDDEN, MOE_WORDS = 4, 2, 0.9, 0.5, 8, 12, 23


def gpt2_experts(source):
    """Those of gpt2_tiny with experts in the place of the MLPs."""
    width, hidden = MOE_WIDTH, 4 * MOE_WIDTH
    p = {name: tensor for name, tensor in initial_parameters(source, MOE_WORDS, width).items() if ".mlp." not in name}
    for i in range(LAYERS):
        mlp = f"transformer.h.{i}.mlp."
        p[mlp + "gate.weight"] = source.uniform((width, EXPERTS), 0.5)
        p[mlp + "experts.up_proj"] = source.uniform((EXPERTS, width, hidden), 0.3)
        p[mlp + "experts.up_proj_bias"] = source.uniform((EXPERTS * hidden,), 0.1)
        p[mlp + "experts.down_proj"] = source.uniform((EXPERTS, hidden, width), 0.3)
        p[mlp + "experts.down_proj_bias"] = source.uniform((EXPERTS * width,), 0.1)
    return {name: tensor.detach().requires_grad_() for name, tensor in p.items()}


def llama_experts(source):
    """Those of llama_tiny with gated experts, without biases, in the place of the MLPs."""
    width, hidden = MOE_WIDTH, MOE_HIDDEN
    p = {name: tensor for name, tensor in llama_parameters(source, MOE_WORDS, width).items() if ".mlp." not in name}
    for i in range(LAYERS):
        mlp = f"model.layers.{i}.mlp."
        p[mlp + "gate.weight"] = source.uniform((width, EXPERTS), 0.5)
        p[mlp + "experts.gate_up_proj"] = source.uniform((EXPERTS, width, 2 * hidden), 0.3)
        p[mlp + "experts.down_proj"] = source.uniform((EXPERTS, hidden, width), 0.3)
    return {name: tensor.detach().requires_grad_() for name, tensor in p.items()}


def expert(p, name, e, rows):
    """Expert e for all rows: gated without biases, or with GELU and biases."""
    if name + "gate_up_proj" in p:
        gate, up = (rows @ p[name + "gate_up_proj"][e]).chunk(2, -1)
        return (F.silu(gate) * up) @ p[name + "down_proj"][e]
    up, down = (p[name + f"{part}_proj_bias"].reshape(EXPERTS, -1) for part in ("up", "down"))
    hidden = F.gelu(rows @ p[name + "up_proj"][e] + up[e], approximate="tanh")
    return hidden @ p[name + "down_proj"][e] + down[e]


def experts(p, name, x, capacity):
    """(B,T,C) to the same, the load-balance loss, and how many choices found no room: all tokens are one unit, routed in
    order. Capacity 0: there is room for all."""
    rows = x.reshape(-1, x.shape[-1])
    probabilities = torch.softmax(rows @ p[name + "gate.weight"], -1)
    chosen = torch.zeros_like(probabilities).scatter(1, probabilities.topk(ACTIVE, -1).indices, 1.0)
    room = math.ceil(capacity * len(rows) * ACTIVE / EXPERTS) if capacity else len(rows)
    kept = chosen * (chosen.cumsum(0) <= room)
    weights = probabilities * chosen / (probabilities * chosen).sum(-1, keepdim=True)
    out = torch.zeros_like(rows)
    for e in range(EXPERTS):
        out = out + (weights * kept)[:, e:e + 1] * expert(p, name + "experts.", e, rows)
    share = chosen.sum(0) / (len(rows) * ACTIVE)
    return out.reshape(x.shape), EXPERTS * (share * probabilities.mean(0)).sum(), int((chosen - kept).sum())


def leaves(shards):
    """The positions that each context shard has of a sequence: an early slice of 2 * shards and the late one opposite."""
    if shards == 1:
        return [list(range(T))]
    cut = torch.arange(T).reshape(2 * shards, -1).tolist()
    return [cut[c] + cut[-1 - c] for c in range(shards)]


def moe_step(model, capacity, shards):
    """The step of model(p, tokens, mixture) for make_steps. The balance is the mean of that of each context shard."""
    def step(p, tokens, targets):
        for tensor in p.values():
            tensor.grad = None
        auxiliary, dropped = [], []

        def mixture(name, x):
            out = torch.zeros_like(x)
            dropped.append(0)
            for positions in leaves(shards):
                out[:, positions], balance, drops = experts(p, name, x[:, positions], capacity)
                auxiliary.append(BALANCE * balance / shards)
                dropped[-1] += drops
            return out

        logits = model(p, tokens, mixture)
        loss = cross_entropy(logits, targets)
        (loss + sum(auxiliary)).backward()
        norm = math.sqrt(sum(float((tensor.grad ** 2).sum()) for tensor in p.values()))
        return logits, loss, norm, {"auxiliary": sum(auxiliary).reshape(1), "dropped": torch.tensor(dropped)}

    return step


def gpt2_tied(p, tokens, mixture):
    return gpt2(p, tokens, p["transformer.wte.weight"], p["transformer.wte.weight"], mixture)


def make_moe(seed, out, capacity, parameters, model, shards=1):
    source = Source(seed)
    out.update({"config.width": number(MOE_WIDTH), "config.vocabulary": number(MOE_WORDS),
                "config.experts": number(EXPERTS), "config.active": number(ACTIVE), "config.capacity": number(capacity),
                "config.balance": number(BALANCE)})
    tokens, targets = source.integers((B, T), MOE_WORDS), source.integers((B, T), MOE_WORDS)
    if shards > 1:
        out["config.context"] = number(shards)
    return make_steps(out, parameters(source), tokens, targets, moe_step(model, capacity, shards))


def make_gpt2_moe():
    return make_moe(2026, configuration(), CAPACITY, gpt2_experts, gpt2_tied)


def make_llama_moe():
    return make_moe(2028, llama_configuration(MOE_WORDS, MOE_WIDTH, MOE_HIDDEN), 0.0, llama_experts, llama)


def make_llama_moe_context():
    return make_moe(2029, llama_configuration(MOE_WORDS, MOE_WIDTH, MOE_HIDDEN), CAPACITY, llama_experts, llama, 2)


# ---- the program -------------------------------------------------------------------------------

FILES = {"gpt2_tiny.safetensors": make_gpt2, "gpt2_bf16.safetensors": make_mixed,
         "gpt2_fp16.safetensors": lambda: make_mixed(torch.float16, 1024.0), "llama_tiny.safetensors": make_llama, "cnn_tiny.safetensors": make_cnn,
         "ops.safetensors": lambda: make_cases(op_cases, 7),
         "reduce.safetensors": lambda: make_cases(reduce_cases, 8), "nn.safetensors": make_nn,
         "elementwise.safetensors": lambda: make_cases(elementwise_cases, 11),
         "optim.safetensors": make_optim, "moe_tiny.safetensors": make_gpt2_moe,
         "llama_moe_tiny.safetensors": make_llama_moe, "llama_moe_context.safetensors": make_llama_moe_context}


def differences(old, new):
    """Sentences about what is not the same. Computed values may differ by the last bits of float32."""
    for name in sorted(old.keys() ^ new.keys()):
        yield f"{name} is only in the {'file' if name in old else 'new computation'}"
    for name in sorted(old.keys() & new.keys()):
        a, b = old[name], stored(new[name])
        if a.dtype != b.dtype or a.shape != b.shape:
            yield f"{name}: {a.dtype} {tuple(a.shape)} in the file, {b.dtype} {tuple(b.shape)} computed"
            continue
        scale = max(float(b.abs().max()), 1e-12)
        error = float((a.double() - b.double()).abs().max()) / scale
        if not error <= 2e-7:
            yield f"{name}: differs by {error:.1e} of its largest value"


def main():
    parser = argparse.ArgumentParser(description="Makes or checks the golden files (see the top of this file).")
    parser.add_argument("directory")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    failures = 0
    for name, make in FILES.items():
        path, tensors = os.path.join(arguments.directory, name), make()
        if not arguments.check:
            write(path, tensors)
            print(f"{path}: {len(tensors)} tensors, {os.path.getsize(path)} bytes")
            continue
        found = list(differences(read(path), tensors))
        failures += len(found)
        print(f"{path}: {len(tensors)} tensors, " + (f"{len(found)} differ" if found else "all the same"))
        for sentence in found:
            print("  " + sentence)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
