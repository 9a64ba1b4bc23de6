#!/usr/bin/env python3
"""Writes a smoe model of the qwen3_moe family as a GGUF file, for llama.cpp. Needs numpy.

    to_gguf.py MODEL OUT.gguf       MODEL: a Q4 vault with its annex, or a record store

The two programs then have the same weights, so they choose nearly the same experts for the same
tokens. Experts: a vault's Q4 becomes Q4_0 (same codes, scale 2/15 of ours; Q4_0's levels lie half a
step lower, which is 1 % of a weight's power); records become NVFP4, bit for bit, with scale2 in
tensors of their own. Trunk matrices become Q8_0, the router and norms F32. There is no tokenizer.

Memory: one expert. Source of the layout: docs/gguf.md and ggml-common.h of llama.cpp.
"""
import argparse
import json
import pathlib
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np

F32, Q4_0, Q8_0, NVFP4 = 0, 2, 8, 40  # ggml_type
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34), NVFP4: (64, 36)}  # weights, bytes
ALIGNMENT = 32
MATRICES = ("gate", "up", "down")


def unpack(layout: str, source: np.ndarray, offset: int) -> tuple[Any, ...]:
    return struct.unpack(layout, source[offset:offset + struct.calcsize(layout)].tobytes())


class Trunk:
    """A safetensors image inside a file."""

    def __init__(self, path: pathlib.Path, offset: int) -> None:
        self.bytes = np.memmap(path, np.uint8, "r", offset)
        size = int(self.bytes[:8].view("<u8")[0])
        self.header = json.loads(self.bytes[8:8 + size].tobytes())
        self.data_offset = 8 + size

    def tensor(self, name: str) -> np.ndarray:
        entry = self.header[name]
        first, last = (self.data_offset + offset for offset in entry["data_offsets"])
        raw = self.bytes[first:last]
        if entry["dtype"] == "F32":
            return raw.view("<f4").reshape(entry["shape"])
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{name}: dtype is {entry['dtype']}, expected BF16 or F32")
        wide = raw.view("<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(entry["shape"])


class Vault:
    """Experts and trunk of a Q4 vault: docs/formats/vault.md."""

    expert_type = Q4_0

    def __init__(self, path: pathlib.Path) -> None:
        self.bytes = np.memmap(path, np.uint8, "r")
        version, _, _, count = unpack("<4I", self.bytes, 8)
        self.group, bits = unpack("<2I", self.bytes, 40)
        if version != 2 or bits != 4 or self.group % 32:
            raise SystemExit(f"{path}: version {version}, {bits} bits, groups of {self.group}; "
                             "expected 2, 4 and a multiple of 32")
        self.table = {}
        for i in range(count):
            layer, expert, offset = unpack("<IIQ", self.bytes, 64 + 48 * i)
            self.table[layer, expert] = (offset, 64 + 48 * count + 132 * i)
        sections = dict(self._sections(path))
        self.config = json.loads(self.bytes[slice(*sections["config.json"])].tobytes())
        self.trunk = Trunk(path, sections["trunk"][0])

    def _sections(self, path: pathlib.Path) -> Iterator[tuple[str, tuple[int, int]]]:
        if self.bytes[-64:-56].tobytes() != b"SMOEANNX":
            raise SystemExit(f"{path}: no annex at its end, expected one with the trunk")
        first, size = unpack("<2Q", self.bytes, len(self.bytes) - 40)
        for at in range(first, first + size, 64):
            offset, length = unpack("<2Q", self.bytes, at + 32)
            yield self.bytes[at:at + 32].tobytes().rstrip(b"\0").decode(), (offset, offset + length)

    def matrix(self, layer: int, expert: int, which: int) -> np.ndarray:
        blob, descriptors = self.table[layer, expert]
        packed, packed_size, scales, scales_size = unpack(
            "<4Q", self.bytes, descriptors + 44 * which + 12)
        codes = self.bytes[blob + packed:blob + packed + packed_size].reshape(-1, 16)
        scale = self.bytes[blob + scales:blob + scales + scales_size].view("<f2")
        low, high = codes & 15, codes >> 4  # even weights, odd weights of a block of 32
        out = np.empty((len(codes), 18), np.uint8)
        step = (scale.astype(np.float32) * np.float32(2 / 15)).astype("<f2")
        out[:, :2] = np.repeat(step, self.group // 32).view(np.uint8).reshape(-1, 2)
        out[:, 2::2] = low[:, :8] | low[:, 8:] << 4  # byte j: weights j and j + 16
        out[:, 3::2] = high[:, :8] | high[:, 8:] << 4
        return out

    def scale2(self, layer: int, which: int) -> np.ndarray | None:
        return None


class Records:
    """Experts and trunk of a record store: docs/formats/records.md."""

    expert_type = NVFP4

    def __init__(self, path: pathlib.Path) -> None:
        self.manifest = json.loads((path / "manifest.json").read_text())
        files = {part: path / entry["name"] for part, entry in self.manifest["files"].items()}
        self.config = json.loads(files["config.json"].read_text())
        self.trunk = Trunk(files["trunk"], 0)
        stride = self.manifest["record_stride"]
        self.records = [
            np.memmap(path / self.manifest["file_template"].format(i), np.uint8, "r").reshape(
                -1, stride) for i in range(self.manifest["num_moe_layers"])]

    def matrix(self, layer: int, expert: int, which: int) -> np.ndarray:
        align = self.manifest["sub_align"]
        inter, hidden = self.manifest["inter"], self.manifest["hidden"]
        at = max(256, align)
        for _ in range(which):
            for size in (inter * hidden // 2, inter * hidden // 16):
                at += -(-size // align) * align
        rows, cols = (hidden, inter) if which == 2 else (inter, hidden)
        record = self.records[layer][expert]
        packed = record[at:at + rows * cols // 2].reshape(cols // 2, rows)
        at += -(-packed.size // align) * align
        scale = record[at:at + rows * cols // 16].reshape(cols // 16, rows)
        pairs = np.ascontiguousarray(packed.T).reshape(-1, 8)  # one group of 16 each
        low, high = pairs & 15, pairs >> 4
        codes = np.empty((len(pairs), 8), np.uint8)
        codes[:, 0::2] = low[:, :4] | low[:, 4:] << 4  # byte j: weights j and j + 8
        codes[:, 1::2] = high[:, :4] | high[:, 4:] << 4
        out = np.empty((len(pairs) // 4, 36), np.uint8)
        out[:, :4] = np.ascontiguousarray(scale.T).reshape(-1, 4)
        out[:, 4:] = codes.reshape(-1, 32)
        return out

    def scale2(self, layer: int, which: int) -> np.ndarray:
        return self.records[layer][:, 32 + 4 * which:36 + 4 * which].copy().view("<f4").ravel()


def q8_0(weights: np.ndarray) -> np.ndarray:
    blocks = weights.reshape(-1, 32)
    step = (np.abs(blocks).max(1) / 127).astype("<f2")
    divisor = np.where(step == 0, 1, step.astype(np.float32))
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = step.view(np.uint8).reshape(-1, 2)
    out[:, 2:] = np.clip(np.rint(blocks / divisor[:, None]), -127, 127).astype(np.int8).view(
        np.uint8)
    return out


Part = Callable[[], np.ndarray]
Tensor = tuple[str, int, tuple[int, ...], list[Part]]  # name, type, shape, parts in order


def tensors(model: Vault | Records) -> Iterator[Tensor]:
    trunk = model.trunk

    def plain(name: str, source: str) -> Tensor:
        shape = tuple(trunk.header[source]["shape"])
        return name, F32, shape, [lambda: trunk.tensor(source).astype("<f4")]

    def wide(name: str, source: str) -> Tensor:
        shape = tuple(trunk.header[source]["shape"])
        return name, Q8_0, shape, [lambda: q8_0(trunk.tensor(source))]

    yield wide("token_embd.weight", "model.embed_tokens.weight")
    yield plain("output_norm.weight", "model.norm.weight")
    yield wide("output.weight", "lm_head.weight")
    for i in range(model.config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{i}.", f"blk.{i}."
        yield plain(theirs + "attn_norm.weight", ours + "input_layernorm.weight")
        yield plain(theirs + "ffn_norm.weight", ours + "post_attention_layernorm.weight")
        yield plain(theirs + "ffn_gate_inp.weight", ours + "mlp.gate.weight")
        for short, name in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
            yield wide(f"{theirs}attn_{short}.weight", f"{ours}self_attn.{name}_proj.weight")
        for name in "qk":
            yield plain(f"{theirs}attn_{name}_norm.weight", f"{ours}self_attn.{name}_norm.weight")
        yield from expert_tensors(model, i)


def expert_tensors(model: Vault | Records, layer: int) -> Iterator[Tensor]:
    inter, hidden = model.config["moe_intermediate_size"], model.config["hidden_size"]
    count = model.config["num_experts"]
    for which, name in enumerate(MATRICES):
        shape = (count, hidden, inter) if which == 2 else (count, inter, hidden)
        parts: list[Part] = [partial(model.matrix, layer, e, which) for e in range(count)]
        yield f"blk.{layer}.ffn_{name}_exps.weight", model.expert_type, shape, parts
        scale2 = model.scale2(layer, which)
        if scale2 is not None:
            yield f"blk.{layer}.ffn_{name}_exps.scale", F32, (count,), [partial(np.asarray, scale2)]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def metadata(config: dict[str, Any]) -> list[bytes]:
    def number(key: str, value: int) -> bytes:
        return text(key) + struct.pack("<II", 4, value)

    def real(key: str, value: float) -> bytes:
        return text(key) + struct.pack("<If", 6, value)

    def words(key: str, value: str) -> bytes:
        return text(key) + struct.pack("<I", 8) + text(value)

    if config["model_type"] != "qwen3_moe":
        raise SystemExit(f"config.json: model_type {config['model_type']}, expected qwen3_moe")
    arch = "qwen3moe."
    return [
        words("general.architecture", "qwen3moe"),
        number("general.alignment", ALIGNMENT),
        words("tokenizer.ggml.model", "no_vocab"),
        number(arch + "vocab_size", config["vocab_size"]),
        number(arch + "context_length", config["max_position_embeddings"]),
        number(arch + "embedding_length", config["hidden_size"]),
        number(arch + "block_count", config["num_hidden_layers"]),
        number(arch + "feed_forward_length", config["intermediate_size"]),
        number(arch + "attention.head_count", config["num_attention_heads"]),
        number(arch + "attention.head_count_kv", config["num_key_value_heads"]),
        number(arch + "attention.key_length", config["head_dim"]),
        number(arch + "attention.value_length", config["head_dim"]),
        real(arch + "attention.layer_norm_rms_epsilon", config["rms_norm_eps"]),
        real(arch + "rope.freq_base", config["rope_theta"]),
        number(arch + "expert_count", config["num_experts"]),
        number(arch + "expert_used_count", config["num_experts_per_tok"]),
        number(arch + "expert_feed_forward_length", config["moe_intermediate_size"]),
    ]


def pad(out: BinaryIO) -> None:
    out.write(bytes(-out.tell() % ALIGNMENT))


def write(model: Vault | Records, out: BinaryIO) -> None:
    items = list(tensors(model))
    facts = metadata(model.config)
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(items), len(facts)) + b"".join(facts))
    offset = 0
    for name, kind, shape, _ in items:
        weights, size = BLOCK[kind]
        out.write(text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
        out.write(struct.pack("<IQ", kind, offset))
        offset += -(-int(np.prod(shape)) // weights * size // ALIGNMENT) * ALIGNMENT
    pad(out)
    for name, kind, shape, parts in items:
        first = out.tell()
        for part in parts:
            out.write(np.ascontiguousarray(part()).data)
        weights, size = BLOCK[kind]
        if out.tell() - first != int(np.prod(shape)) // weights * size:
            raise SystemExit(f"{name}: {out.tell() - first} bytes written, expected "
                             f"{int(np.prod(shape)) // weights * size}")
        pad(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    model = Records(arguments.model) if arguments.model.is_dir() else Vault(arguments.model)
    partial = arguments.out.with_name(arguments.out.name + ".partial")
    with open(partial, "wb") as out:
        write(model, out)
    partial.rename(arguments.out)


if __name__ == "__main__":
    main()
