#!/usr/bin/env python3
"""Writes tests/golden/nvfp4_quantiser.json: NVFP4 by numpy, independent of the C++. Needs numpy.

    make_nvfp4_goldens.py OUT.json

Each case is a matrix of blocks of 16 weights. `amax` divides in f32 in the order that the header
tensor/quantise_nvfp4.h gives; `mse` tries every block scale that E4M3 has in f64. A block counts as
sure if its best scale is better than the next by more than a thousandth.
"""
import json
import sys

import numpy as np

F = np.float32
LEVELS = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array([(c & 7) * 2.0**-9 if c < 8 else (1 + (c & 7) / 8) * 2.0**((c >> 3) - 7)
                 for c in range(127)])


def nearest(values, grid):
    """Index of the nearest grid value, half to the even index."""
    distance = np.abs(values[..., None] - grid)
    best = distance.argmin(-1)
    above = np.minimum(best + 1, len(grid) - 1)
    tie = (np.take_along_axis(distance, above[..., None], -1)[..., 0]
           == np.take_along_axis(distance, best[..., None], -1)[..., 0]) & (above != best)
    return np.where(tie & (best % 2 == 1), above, best)


def codes(blocks, scales, scale2):
    """Codes and squared errors of blocks under block scale codes; steps in f32 as stored."""
    factor = (E4M3[scales].astype(F) * scale2)[:, None]
    steps = np.divide(blocks, factor, out=np.zeros_like(blocks), where=factor != 0)
    code = nearest(np.minimum(np.abs(steps), F(6)).astype(np.float64), LEVELS)
    value = LEVELS[code] * E4M3[scales][:, None] * np.float64(scale2) * np.where(steps < 0, -1, 1)
    error = ((blocks.astype(np.float64) - value) ** 2).sum(1)
    return code | (np.signbit(steps).astype(int) << 3), error


def pack(code):
    flat = code.reshape(-1)
    return (flat[0::2] | (flat[1::2] << 4)).astype(np.uint8).tobytes().hex()


def case(name, weights):
    blocks = weights.astype(F).reshape(-1, 16)
    largest = np.abs(blocks).max()
    scale2 = F(largest / F(6 * 448)) if largest > 0 else F(1)
    wanted = (np.abs(blocks).max(1) / F(6) / scale2).astype(np.float64)
    amax = nearest(np.minimum(wanted, 448), E4M3)
    errors = np.stack([codes(blocks, np.full(len(blocks), c), scale2)[1] for c in range(127)])
    order = np.sort(errors, axis=0)
    mse = errors.argmin(0)
    sure = order[1] > order[0] * 1.001
    return {
        "name": name, "weights": blocks.tobytes().hex(), "scale2": scale2.tobytes().hex(),
        "amax_scales": amax.astype(np.uint8).tobytes().hex(),
        "amax_codes": pack(codes(blocks, amax, scale2)[0]),
        "mse_scales": mse.astype(np.uint8).tobytes().hex(),
        "mse_codes": pack(codes(blocks, mse, scale2)[0]),
        "sure": "".join("1" if s else "0" for s in sure),
    }


def main():
    random = np.random.default_rng(4)
    ties = np.array([0, .25, .5, .75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, -.25]) * 2.0**-10
    cases = [
        case("normal", random.standard_normal(16 * 64) * 0.02),
        case("heavy tails", random.standard_t(3, 16 * 32)),
        case("one large block", np.concatenate([random.standard_normal(16 * 7) * 1e-3,
                                                random.standard_normal(16) * 4])),
        case("ties", np.concatenate([ties, -ties, ties[::-1]])),
    ]
    with open(sys.argv[1], "w") as out:
        json.dump({"cases": cases}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
