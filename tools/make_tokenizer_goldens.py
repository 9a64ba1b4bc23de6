#!/usr/bin/env python3
"""Prints the hashes that src/text/tokenizer_random_test.cc compares: ids and decoded texts of
random strings by the reference library (pip install tokenizers==0.23.2).

    V/bin/python tools/make_tokenizer_goldens.py models/tiny-moe/tokenizer.json

The strings come from a generator that the test has too: a 64-bit LCG, its upper 31 bits.
"""

import sys

from tokenizers import Tokenizer

MASK = (1 << 64) - 1
PIECES = ["<|im_end|>", "<tool_call>", "<|im_", "end|>", "'ll", " the",
          "\r\n", "  ", "\u0301", "I'VE", "12345", "\u2029"]
# (first, count) of code points: letters, digits, Latin with accents, combining marks, Arabic
# digits, CJK, CJK of four bytes, emoji, everything below the surrogates, everything above.
RANGES = [(0x61, 26), (0x30, 10), (0xC0, 0x180), (0x300, 0x70), (0x660, 10),
          (0x4E00, 0x5000), (0x20000, 0xA000), (0x1F300, 0x300), (0x1, 0xD7FF), (0xE000, 0x101FFF)]


class Random:
    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 33) % bound


def string(random):
    out = ""
    for _ in range(random.below(24)):
        kind = random.below(len(RANGES) + 4)
        if kind < len(RANGES):
            first, count = RANGES[kind]
            out += chr(first + random.below(count))
        elif kind < len(RANGES) + 2:
            out += PIECES[random.below(len(PIECES))]
        else:
            out += " \n\tA"[random.below(4)]
    return out


class Fnv:
    def __init__(self):
        self.value = 0xCBF29CE484222325

    def add(self, data):
        for byte in data:
            self.value = ((self.value ^ byte) * 0x100000001B3) & MASK


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    for block in range(10):
        random, fnv = Random(block), Fnv()
        for _ in range(1000):
            text = string(random)
            for special in (False, True):
                tokenizer.encode_special_tokens = special
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                for i in ids + [0xFFFFFFFF]:
                    fnv.add(i.to_bytes(4, "little"))
                fnv.add(tokenizer.decode(ids, skip_special_tokens=False).encode())
        print(f"    0x{fnv.value:016x},")


if __name__ == "__main__":
    main()
