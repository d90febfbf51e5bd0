#!/usr/bin/env python3
"""Directories of tiny models as transformers write them, with the logits that transformers compute from them.

    python3 make_interop.py golden DIR     the committed ones (tests/golden/hub), 3 directories
    python3 make_interop.py family DIR     the committed ones of Llama's family, 5 directories
    python3 make_interop.py live DIR       more of them, larger, for a test with transformers at hand
    python3 make_interop.py expect T DIR.. add the logits of T tokens to directories that others wrote
    python3 make_interop.py read FILE..    read safetensors files with safetensors.numpy

The committed ones were made with transformers 4.45.2, torch 1.13.1 and safetensors 0.8.0, those of the family with
transformers 5.24.0 and torch 2. Each directory gets, beside
config.json and the weights, expected.safetensors: tokens (B,T) I32 and logits (B,T,V) F32, computed in float32 from the
weights as they were read back. Weights come from a seed; they are larger than usual first weights, so that a wrong one
shows in the logits."""
import os
import sys

import safetensors.numpy
import safetensors.torch
import torch
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)
try:
    from transformers import Qwen3Config, Qwen3ForCausalLM
except ImportError: # before 4.51
    Qwen3Config = Qwen3ForCausalLM = None

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}


def gpt2(seed, **sizes):
    return drawn(GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None, **sizes)), seed)


def llama(seed, **sizes):
    return drawn(LlamaForCausalLM(LlamaConfig(bos_token_id=None, eos_token_id=None, **sizes)), seed)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def other(family, seed, **sizes):
    config, model = {"mistral": (MistralConfig, MistralForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
                     "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[family]
    return drawn(model(config(bos_token_id=None, eos_token_id=None, **sizes)), seed)


def drawn(model, seed):
    random = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        with torch.no_grad():
            p.normal_(0.0, p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3, generator=random)
            if "norm" in name or "ln_" in name:
                p.add_(1.0)
    return model


def hub_style(model, folder):
    """As GPT-2 lies on the hub: names without "transformer.", masks among the tensors."""
    model.config.save_pretrained(folder)
    tensors = {name: t.contiguous() for name, t in model.transformer.state_dict().items()}
    n = model.config.n_positions
    for layer in range(model.config.n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(n, n)).view(1, 1, n, n)
    safetensors.torch.save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def with_its_head(model, folder):
    """A tied head that is in the file nevertheless, as some programs write it."""
    model.config.save_pretrained(folder)
    tensors = {name: t.clone() for name, t in model.state_dict().items()}
    safetensors.torch.save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def expect(folder, length):
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
    random = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, model.config.vocab_size, (2, length), generator=random)
    with torch.no_grad():
        logits = model(tokens).logits
    safetensors.torch.save_file({"tokens": tokens.to(torch.int32), "logits": logits.float().contiguous()},
                                os.path.join(folder, "expected.safetensors"))


def make(into, cases, length):
    for name, (model, dtype, how) in cases.items():
        folder = os.path.join(into, name)
        os.makedirs(folder, exist_ok=True)
        model = model.to(dtype)
        if callable(how):
            how(model, folder)
        else:
            model.save_pretrained(folder, safe_serialization=True, max_shard_size=how)
        generation = os.path.join(folder, "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)
        expect(folder, length)
        print(name)


def golden(into):
    small = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64)
    make(into, {
        "gpt2": (gpt2(1, vocab_size=40, n_embd=12, n_layer=2, n_head=2, n_positions=10), torch.float32, hub_style),
        "llama_grouped": (llama(2, **small), torch.bfloat16, "4KB"),
        "llama_tied": (llama(3, tie_word_embeddings=True, rope_scaling=LLAMA3, rope_theta=5e5, rms_norm_eps=1e-5,
                             **small), torch.float16, "1MB"),
    }, 8)


def family(into):
    small = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64)
    make(into, {
        "mistral": (other("mistral", 4, sliding_window=8, head_dim=6, **small), torch.bfloat16, "1MB"),
        "qwen2": (other("qwen2", 5, sliding_window=4, use_sliding_window=False, **small), torch.bfloat16, "1MB"),
        "qwen3": (other("qwen3", 6, head_dim=8, attention_bias=True, tie_word_embeddings=True, **small), torch.bfloat16,
                  "1MB"),
        "llama_biases": (llama(7, attention_bias=True, mlp_bias=True, rope_scaling={"rope_type": "linear", "factor": 3.0},
                               **small), torch.bfloat16, "1MB"),
        "llama_yarn": (llama(8, rope_scaling={**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 0.7,
                                              "truncate": False}, rope_theta=500.0, **small), torch.bfloat16, "1MB"),
    }, 8)


def live(into):
    sizes = dict(vocab_size=301, n_embd=96, n_layer=3, n_head=4, n_positions=64)
    big = dict(vocab_size=301, hidden_size=96, intermediate_size=136, num_hidden_layers=3, num_attention_heads=6,
               max_position_embeddings=64)
    make(into, {
        "gpt2_fp32": (gpt2(11, **sizes), torch.float32, "10GB"),
        "gpt2_fp16": (gpt2(12, **sizes), torch.float16, "100KB"),
        "gpt2_hub": (gpt2(13, **sizes), torch.bfloat16, hub_style),
        "llama_fp32": (llama(14, num_key_value_heads=6, **big), torch.float32, "200KB"),
        "llama_bf16": (llama(15, num_key_value_heads=2, rope_theta=5e5, **big), torch.bfloat16, "100KB"),
        "llama_fp16": (llama(16, num_key_value_heads=2, tie_word_embeddings=True, rope_scaling=LLAMA3, **big),
                       torch.float16, with_its_head),
        "llama_biases": (llama(17, num_key_value_heads=2, attention_bias=True, mlp_bias=True, **big), torch.float32, "1MB"),
        "llama_head": (llama(18, num_key_value_heads=2, head_dim=10, **big), torch.float32, "1MB"),
        "llama_linear": (llama(19, num_key_value_heads=2, rope_scaling={"rope_type": "linear", "factor": 3.0}, **big),
                         torch.float32, "1MB"),
        "llama_yarn": (llama(20, num_key_value_heads=2, rope_scaling=YARN, **big), torch.float32, "1MB"),
        "mistral": (other("mistral", 21, num_key_value_heads=2, sliding_window=32, head_dim=20, **big), torch.float32, "1MB"),
        "mistral_open": (other("mistral", 22, num_key_value_heads=2, sliding_window=None, **big), torch.float32, "1MB"),
        "qwen2": (other("qwen2", 23, num_key_value_heads=2, rope_scaling=YARN, **big), torch.float32, "1MB"),
    }, 32)
    if Qwen3Config:
        make(into, {
            "qwen3": (other("qwen3", 24, num_key_value_heads=2, head_dim=32, **big), torch.float32, "1MB"),
            "qwen3_biases": (other("qwen3", 25, num_key_value_heads=2, head_dim=16, attention_bias=True,
                                   tie_word_embeddings=True, **big), torch.bfloat16, "1MB"),
        }, 32)


def main():
    verb, rest = sys.argv[1], sys.argv[2:]
    if verb == "golden":
        golden(rest[0])
    elif verb == "family":
        family(rest[0])
    elif verb == "live":
        live(rest[0])
    elif verb == "expect":
        for folder in rest[1:]:
            expect(folder, int(rest[0]))
    elif verb == "read":
        for path in rest:
            print(path, len(safetensors.numpy.load_file(path)))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
