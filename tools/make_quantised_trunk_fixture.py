#!/usr/bin/env python3
"""Makes tests/golden/quantised_trunk: matrices of tests/golden/deepseek_v1 in NVFP4 and FP8.

    pip install numpy; python3 tools/make_quantised_trunk_fixture.py tests/golden

For each kind two files: KIND.safetensors has the quantised tensors under the names of published
checkpoints, KIND.f32.safetensors the same matrices dequantised to f32, as float32 numpy computes
them. An implementation of its own: it shares nothing with src/. The same bytes on every run.
"""
import json
import pathlib
import struct
import sys

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
GROUP = 16
FP8_BLOCK = 16
ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]
SHARED = [f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")]
# The dense layer's down_proj has 24 columns, no multiple of 16.
DENSE = ["mlp.gate_proj", "mlp.up_proj"]
STEMS = {
    "modelopt": [f"model.layers.{layer}.{part}" for layer in range(3)
                 for part in ATTENTION + (SHARED if layer else DENSE)] + ["lm_head"],
    "compressed_tensors": [f"model.layers.0.{part}" for part in ATTENTION] + ["lm_head"],
    "fp8": [f"model.layers.0.{part}" for part in ATTENTION] +
           [f"model.layers.1.{part}" for part in SHARED],
}


def e4m3_values():
    values = []
    for code in range(127):  # 127 is NaN
        exponent, fraction = code >> 3, code & 7
        values.append(fraction * 2.0 ** -9 if exponent == 0
                      else (1 + fraction / 8) * 2.0 ** (exponent - 7))
    return np.array(values, np.float32)


E4M3 = e4m3_values()


def nearest(table, values):
    return np.abs(values[..., None] - table).argmin(-1).astype(np.uint8)


def read_bf16(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(raw[8 + size + begin:8 + size + end], np.uint16)
        tensors[name] = (bits.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    """`tensors`: name to (dtype name, array)."""
    header, offset = {}, 0
    for name, (dtype, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(data.shape),
                        "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(np.ascontiguousarray(data).tobytes() for _, data in tensors.values()))


def nvfp4(weight, inverse_global):
    """Codes [rows, cols / 2], block scale codes, the stored global scale, the f32 matrix."""
    rows, cols = weight.shape
    stored = np.float32(6 * 448 / np.abs(weight).max()) if inverse_global \
        else np.float32(np.abs(weight).max() / (6 * 448))
    scale2 = np.float32(1) / stored if inverse_global else stored
    groups = weight.reshape(rows, cols // GROUP, GROUP)
    block_codes = nearest(E4M3, np.abs(groups).max(-1) / 6 / scale2)
    blocks = E4M3[block_codes]
    safe = np.where(blocks == 0, 1, blocks) * scale2
    codes = nearest(E2M1, np.abs(groups) / safe[..., None])
    exact = np.where(groups < 0, -E2M1[codes], E2M1[codes]) * blocks[..., None]  # fits f32
    values = (exact * scale2).astype(np.float32).reshape(rows, cols)
    codes = (codes | np.where(groups < 0, 8, 0).astype(np.uint8)).reshape(rows, cols)
    return codes[:, 0::2] | codes[:, 1::2] << 4, block_codes, stored, values


def fp8(weight):
    """Codes, one float for each block, the f32 matrix."""
    rows, cols = weight.shape
    grid = (-(-rows // FP8_BLOCK), -(-cols // FP8_BLOCK))
    scales = np.empty(grid, np.float32)
    codes = np.empty(weight.shape, np.uint8)
    values = np.empty(weight.shape, np.float32)
    for i in range(grid[0]):
        for j in range(grid[1]):
            at = np.s_[i * FP8_BLOCK:(i + 1) * FP8_BLOCK, j * FP8_BLOCK:(j + 1) * FP8_BLOCK]
            block = weight[at]
            scales[i, j] = np.abs(block).max() / np.float32(448)
            magnitude = nearest(E4M3, np.abs(block) / scales[i, j])
            codes[at] = magnitude | np.where(block < 0, 0x80, 0).astype(np.uint8)
            values[at] = np.where(block < 0, -E4M3[magnitude], E4M3[magnitude]) * scales[i, j]
    return codes, scales, values


def quantise(kind, stem, weight):
    """The tensors of one matrix, and the matrix again."""
    if kind == "fp8":
        codes, scales, values = fp8(weight)
        return {f"{stem}.weight": ("F8_E4M3", codes),
                f"{stem}.weight_scale_inv": ("F32", scales)}, values
    is_packed = kind == "compressed_tensors"
    codes, blocks, stored, values = nvfp4(weight, is_packed)
    tensors = {f"{stem}.{'weight_packed' if is_packed else 'weight'}": ("U8", codes),
               f"{stem}.weight_scale": ("F8_E4M3", blocks)}
    if is_packed:
        tensors[f"{stem}.weight_global_scale"] = ("F32", np.array([stored], np.float32))
        tensors[f"{stem}.input_global_scale"] = ("F32", np.array([123.5], np.float32))
    else:
        tensors[f"{stem}.weight_scale_2"] = ("F32", np.array(stored, np.float32))
        tensors[f"{stem}.input_scale"] = ("F32", np.array(0.0123, np.float32))
        if stem.endswith("k_proj"):  # of an FP8 KV cache
            tensors[f"{stem}.k_scale"] = ("F32", np.array(1, np.float32))
    return tensors, values


def main():
    golden = pathlib.Path(sys.argv[1])
    weights = read_bf16(golden / "deepseek_v1" / "model.safetensors")
    folder = golden / "quantised_trunk"
    folder.mkdir(parents=True, exist_ok=True)
    for kind, stems in STEMS.items():
        quantised, plain, errors = {}, {}, []
        for stem in stems:
            weight = weights[stem + ".weight"]
            tensors, values = quantise(kind, stem, weight)
            quantised.update(tensors)
            plain[stem + ".weight"] = ("F32", values)
            errors.append(np.sqrt(((values - weight) ** 2).mean() / (weight ** 2).mean()))
        write_safetensors(folder / f"{kind}.safetensors", quantised)
        write_safetensors(folder / f"{kind}.f32.safetensors", plain)
        print("%s: %d matrices, relative error %.3f to %.3f" % (
            kind, len(stems), min(errors), max(errors)))


if __name__ == "__main__":
    main()
