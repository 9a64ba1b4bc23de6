#!/usr/bin/env python3
"""Makes tests/golden/deepseek_v1: a tiny DeepSeek-MoE (version 1) checkpoint and what it computes.

    pip install numpy; python3 tools/make_deepseek_fixture.py tests/golden/deepseek_v1

An implementation of its own, in float64 numpy, after the formulas of modeling_deepseek.py as
published with deepseek-ai/deepseek-moe-16b-base: the reference library does not carry version 1.
The same seed gives the same bytes. Tensor names of the goldens are those of the reference data.
"""
import json
import pathlib
import struct
import sys

import numpy as np

CONFIG = {
    "architectures": ["DeepseekForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "model_type": "deepseek",
    "moe_intermediate_size": 8,
    "moe_layer_freq": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0",
    "use_cache": True,
    "vocab_size": 40,
}
SEED = 20240111
PROMPT_LENGTHS = (1, 9, 70)
GREEDY_STEPS = 16


def to_bf16(values):
    """Rounds half to even; returns the 16 bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def make_weights(random):
    hidden, layers = CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
    head_dim = hidden // CONFIG["num_attention_heads"]
    q_width = hidden
    kv_width = CONFIG["num_key_value_heads"] * head_dim
    weights = {}

    def matrix(name, rows, cols, gain):
        weights[name] = to_bf16(random.standard_normal((rows, cols)) * gain / np.sqrt(cols))

    def norm(name):
        weights[name] = to_bf16(1 + 0.2 * random.standard_normal(hidden))

    def network(stem, width):
        matrix(stem + ".gate_proj.weight", width, hidden, 1.6)
        matrix(stem + ".up_proj.weight", width, hidden, 1.6)
        matrix(stem + ".down_proj.weight", hidden, width, 1.6)

    weights["model.embed_tokens.weight"] = to_bf16(
        random.standard_normal((CONFIG["vocab_size"], hidden)))
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        norm(stem + "input_layernorm.weight")
        matrix(stem + "self_attn.q_proj.weight", q_width, hidden, 2.0)
        matrix(stem + "self_attn.k_proj.weight", kv_width, hidden, 2.0)
        matrix(stem + "self_attn.v_proj.weight", kv_width, hidden, 1.0)
        matrix(stem + "self_attn.o_proj.weight", hidden, q_width, 1.0)
        norm(stem + "post_attention_layernorm.weight")
        if layer < CONFIG["first_k_dense_replace"]:
            network(stem + "mlp", CONFIG["intermediate_size"])
            continue
        matrix(stem + "mlp.gate.weight", CONFIG["n_routed_experts"], hidden, 2.0)
        for expert in range(CONFIG["n_routed_experts"]):
            network(stem + f"mlp.experts.{expert}", CONFIG["moe_intermediate_size"])
        network(stem + "mlp.shared_experts",
                CONFIG["moe_intermediate_size"] * CONFIG["n_shared_experts"])
    norm("model.norm.weight")
    matrix("lm_head.weight", CONFIG["vocab_size"], hidden, 3.0)
    return weights


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def network(w, stem, x):
    gate = x @ w[stem + ".gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ w[stem + ".up_proj.weight"].T)) \
        @ w[stem + ".down_proj.weight"].T


def rotate(x, positions):
    """x [tokens, heads, head_dim]; the first half of a head pairs with the second."""
    dim = x.shape[-1]
    inv_freq = 1.0 / CONFIG["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    angles = positions[:, None] * inv_freq
    angles = np.concatenate([angles, angles], -1)[:, None, :]
    turned = np.concatenate([-x[..., dim // 2:], x[..., :dim // 2]], -1)
    return x * np.cos(angles) + turned * np.sin(angles)


def attention(w, stem, x):
    tokens = len(x)
    heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    dim = CONFIG["hidden_size"] // heads
    positions = np.arange(tokens)
    q = rotate((x @ w[stem + "q_proj.weight"].T).reshape(tokens, heads, dim), positions)
    k = rotate((x @ w[stem + "k_proj.weight"].T).reshape(tokens, kv_heads, dim), positions)
    v = (x @ w[stem + "v_proj.weight"].T).reshape(tokens, kv_heads, dim)
    k, v = (np.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
    scores = np.where(positions[None, :, None] >= positions[None, None, :], scores, -np.inf)
    out = np.einsum("hij,jhd->ihd", softmax(scores), v).reshape(tokens, heads * dim)
    return out @ w[stem + "o_proj.weight"].T


def experts(w, stem, x, taps, layer):
    logits = x @ w[stem + "gate.weight"].T
    scores = softmax(logits)
    ids = np.sort(np.argsort(-scores, axis=-1, kind="stable")[:, :CONFIG["num_experts_per_tok"]])
    weights = np.take_along_axis(scores, ids, -1)  # norm_topk_prob is off in the published config
    out = np.zeros_like(x)
    for row in range(len(x)):
        for rank, expert in enumerate(ids[row]):
            out[row] += weights[row, rank] * network(w, stem + f"experts.{expert}", x[row])
    taps[f"router.L{layer:02}.ids"] = ids.astype(np.int32)
    taps[f"router.L{layer:02}.weights"] = weights.astype(np.float32)
    taps[f"router.L{layer:02}.logits"] = logits.astype(np.float32)
    return out + network(w, stem + "shared_experts", x)


def forward(w, ids):
    taps = {}
    x = w["model.embed_tokens.weight"][ids]
    taps["hidden.embed"] = x.astype(np.float32)
    for layer in range(CONFIG["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        x = x + attention(w, stem + "self_attn.", rms_norm(x, w[stem + "input_layernorm.weight"]))
        y = rms_norm(x, w[stem + "post_attention_layernorm.weight"])
        if layer < CONFIG["first_k_dense_replace"]:
            x = x + network(w, stem + "mlp", y)
        else:
            x = x + experts(w, stem + "mlp.", y, taps, layer)
        taps[f"hidden.L{layer:02}"] = x.astype(np.float32)
    x = rms_norm(x, w["model.norm.weight"])
    taps["hidden.norm"] = x.astype(np.float32)
    taps["logits"] = (x @ w["lm_head.weight"].T).astype(np.float32)
    return taps


def greedy(w, ids):
    ids, margins = list(ids), []
    for _ in range(GREEDY_STEPS):
        logits = forward(w, np.array(ids))["logits"][-1]
        order = np.argsort(-logits, kind="stable")
        margins.append(logits[order[0]] - logits[order[1]])
        ids.append(int(order[0]))
    return np.array(ids[-GREEDY_STEPS:], np.int32), np.array(margins, np.float32)


def write_safetensors(path, tensors):
    names = {np.dtype(np.uint16): "BF16", np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": names[data.dtype], "shape": list(data.shape),
                        "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(np.ascontiguousarray(data).tobytes() for data in tensors.values()))


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    stored = make_weights(random)
    weights = {name: from_bf16(bits) for name, bits in stored.items()}
    goldens = {}
    for index, length in enumerate(PROMPT_LENGTHS):
        ids = random.integers(3, CONFIG["vocab_size"], length)
        goldens[f"p{index}.input_ids"] = ids.astype(np.int32)
        for name, data in forward(weights, ids).items():
            if index == 1 or not name.startswith("hidden."):
                goldens[f"p{index}.{name}"] = data
        if index == 1:
            goldens["greedy.ids"], goldens["greedy.margin"] = greedy(weights, ids)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", stored)
    write_safetensors(folder / "golden.safetensors", goldens)
    logits = goldens["p2.logits"]
    print("logits: std %.2f, largest %.2f; least greedy margin %.3f; experts used %s" % (
        logits.std(), np.abs(logits).max(), goldens["greedy.margin"].min(),
        [len(np.unique(goldens[f"p2.router.L{layer:02}.ids"])) for layer in (1, 2)]))
    for layer in (1, 2):
        scores = np.sort(goldens[f"p2.router.L{layer:02}.logits"])[:, ::-1]
        print("layer %d: least gap at the cut %.4f" % (layer, (scores[:, 1] - scores[:, 2]).min()))


if __name__ == "__main__":
    main()
