#!/usr/bin/env python3
"""Writes a Qwen3-MoE checkpoint with random weights, to measure conversions with. Needs numpy.

    make_random_checkpoint.py FOLDER [--layers 4] [--experts 48] [--hidden 2048] [--ffn 768]
                              [--vocab 32000] [--seed 1] [--sparse] [--nvfp4]

The defaults give 2.08 GB of bf16. With --nvfp4 the experts are NVFP4 in ModelOpt's naming: random
codes, block scales from 1/2 to 4. Weights are normal numbers from a seeded generator, the same on
every machine with the same numpy. --sparse writes only names and shapes and leaves the data a hole
in the file: zeros that take no space, to try sizes. Memory: 64 MB, whatever the size.
"""
import argparse
import json
import os
import pathlib
import struct

import numpy as np

CHUNK = 1 << 23  # elements
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}


def tensors(a):
    """Name, shape and standard deviation of every tensor, in the order of the file."""
    heads, kv_heads, head_dim = 16, 4, 128
    yield "lm_head.weight", [a.vocab, a.hidden], 0.02
    yield "model.embed_tokens.weight", [a.vocab, a.hidden], 0.02
    for layer in range(a.layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [a.hidden], None
        for e in range(a.experts):
            x = f"{p}mlp.experts.{e}."
            yield x + "down_proj.weight", [a.hidden, a.ffn], 0.02
            yield x + "gate_proj.weight", [a.ffn, a.hidden], 0.02
            yield x + "up_proj.weight", [a.ffn, a.hidden], 0.02
        yield p + "mlp.gate.weight", [a.experts, a.hidden], 0.02
        yield p + "post_attention_layernorm.weight", [a.hidden], None
        yield p + "self_attn.k_norm.weight", [head_dim], None
        yield p + "self_attn.k_proj.weight", [kv_heads * head_dim, a.hidden], 0.02
        yield p + "self_attn.o_proj.weight", [a.hidden, heads * head_dim], 0.02
        yield p + "self_attn.q_norm.weight", [head_dim], None
        yield p + "self_attn.q_proj.weight", [heads * head_dim, a.hidden], 0.02
        yield p + "self_attn.v_proj.weight", [kv_heads * head_dim, a.hidden], 0.02
    yield "model.norm.weight", [a.hidden], None


def stored(a):
    """Name, type, shape and standard deviation of every tensor as stored: wide types
    first, as the safetensors library sorts them."""
    if not a.nvfp4:
        return [(name, "BF16", shape, deviation) for name, shape, deviation in tensors(a)]
    out = []
    for name, shape, deviation in tensors(a):
        if ".experts." not in name:
            out.append((name, "BF16", shape, deviation))
            continue
        rows, cols = shape
        stem = name.removesuffix(".weight")
        out += [(stem + ".input_scale", "F32", [], None), (name + "_scale_2", "F32", [], None),
                (name + "_scale", "F8_E4M3", [rows, cols // 16], None),
                (name, "U8", [rows, cols // 2], None)]
    return sorted(out, key=lambda tensor: list(BYTES).index(tensor[1]))


def values(random, kind, count, deviation):
    """Bytes of `count` elements."""
    if kind == "F32":
        return np.full(count, 2.0**-12, np.float32).tobytes()
    if kind == "F8_E4M3":
        return random.integers(0x30, 0x48, count, np.uint8).tobytes()
    if kind == "U8":
        return random.bytes(count)
    if deviation is None:
        return bf16(np.ones(count, np.float32)).tobytes()
    return bf16(random.standard_normal(count, np.float32) * np.float32(deviation)).tobytes()


def config(a):
    quantised = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    return (quantised if a.nvfp4 else {}) | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "hidden_size": a.hidden, "num_hidden_layers": a.layers, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": a.vocab,
        "intermediate_size": a.ffn, "moe_intermediate_size": a.ffn, "num_experts": a.experts,
        "num_experts_per_tok": min(8, a.experts), "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }


def bf16(values):
    """Bits of f32 values, rounded half to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    for name, value in (("layers", 4), ("experts", 48), ("hidden", 2048), ("ffn", 768),
                        ("vocab", 32000), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--nvfp4", action="store_true")
    a = parser.parse_args()

    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, kind, shape, _ in stored(a):
        size = BYTES[kind] * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    a.folder.mkdir(parents=True, exist_ok=True)
    (a.folder / "config.json").write_text(json.dumps(config(a), indent=2) + "\n")
    random = np.random.default_rng(a.seed)
    with open(a.folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        if a.sparse:
            out.truncate(8 + len(text) + end)
        else:
            for _, kind, shape, deviation in stored(a):
                left = int(np.prod(shape))
                while left:
                    count = min(left, CHUNK)
                    out.write(values(random, kind, count, deviation))
                    left -= count
    print(f"{a.folder}: {8 + len(text) + end} bytes, "
          f"{os.stat(a.folder / 'model.safetensors').st_blocks * 512} on the drive")


if __name__ == "__main__":
    main()
