#!/usr/bin/env python3
"""What a token costs, by how much is known of the experts that come next.

    build/release/smoe trace MODEL --random 3000 --out model.trace
    python3 bench/foresight.py model.trace --slots 383 --layer-ms 0.92 --expert-ms 0.145 \
        --head-ms 3.1 --read-ms 1.61 --bound-ms 24.4

Replays the routers' choices of a trace against one drive that serves one read after another, and
one processor. The layer's router speaks, its misses are queued, the hits are computed, then each
miss as it arrives; the next layer begins. Experts of later layers that are known (all of them, or
a guess of given recall and precision) are queued behind the misses, nearest layer first, as many
as begin before the next router speaks; what is read stays until its layer. Eviction is by
fixed weights, nearly those that the program begins to learn from: 3/4 of a share with a half-life
of 256 tokens, 1/4 of one with 2. The program reads less (docs/streaming.md).

The times are of a resident run: `smoe bench MODEL --profile` (projections, attend and router by
layers; experts by layers and experts; head and rest), read-ms from `smoe bench MODEL --drive`,
bound-ms is the bytes of a token by the rate of memory.
"""
import argparse
import random

SLOW_HALF_LIFE, FAST_HALF_LIFE, FAST_WEIGHT = 256, 2, 0.25


def read_trace(path):
    """[token][layer] -> the experts it chose."""
    tokens = []
    with open(path, encoding="ascii") as lines:
        for line in lines:
            if line.startswith("#"):
                continue
            layer, *experts = map(int, line.split())
            if not tokens or layer <= last_layer:
                tokens.append([])
            tokens[-1].append(experts)
            last_layer = layer
    return tokens


class Cache:
    """Which experts are there, or will be: (layer, expert) -> when its read ends."""

    def __init__(self, slots, read_ms):
        self.slots, self.read_ms = slots, read_ms
        self.arrival = {}
        self.shares = {}  # layer -> expert -> [slow, fast]
        self.drive_free_at = 0.0
        self.read_count = 0

    def note(self, layer, experts):
        shares = self.shares.setdefault(layer, {})
        keep = [2 ** (-1 / SLOW_HALF_LIFE), 2 ** (-1 / FAST_HALF_LIFE)]
        for share in shares.values():
            share[0] *= keep[0]
            share[1] *= keep[1]
        for expert in experts:
            share = shares.setdefault(expert, [0.0, 0.0])
            share[0] += 1 - keep[0]
            share[1] += 1 - keep[1]

    def worth(self, key):
        slow, fast = self.shares.get(key[0], {}).get(key[1], (0.0, 0.0))
        return (1 - FAST_WEIGHT) * slow + FAST_WEIGHT * fast

    def read(self, key, now, kept):
        if len(self.arrival) >= self.slots:
            del self.arrival[min((k for k in self.arrival if k not in kept), key=self.worth)]
        self.drive_free_at = max(self.drive_free_at, now) + self.read_ms
        self.arrival[key] = self.drive_free_at
        self.read_count += 1


def coming(tokens, token, layer, layer_total):
    """Experts of the layers behind this one, nearest first."""
    layer_count = len(tokens[token])
    for ahead in range(1, layer_total + 1):
        behind, at_layer = divmod(layer + ahead, layer_count)
        if token + behind == len(tokens):
            return
        for expert in tokens[token + behind][at_layer]:
            yield at_layer, expert


def replay(tokens, options, way):
    """Of a token: milliseconds, of these waiting, reads, and reads in vain."""
    rng = random.Random(1)
    cache = Cache(options.slots, options.read_ms)
    now = waited = 0.0
    wrong_count = 0
    foreseen_kept = set()
    for token in range(options.skip + options.count):
        if token == options.skip:
            begin, waited, cache.read_count, wrong_count = now, 0.0, 0, 0
        for layer, experts in enumerate(tokens[token]):
            now += options.layer_ms
            wanted = {(layer, expert) for expert in experts}
            foreseen_kept = {key for key in foreseen_kept if key[0] != layer}
            cache.note(layer, experts)
            for key in wanted - cache.arrival.keys():
                cache.read(key, now, wanted | foreseen_kept)
            late = sorted(at for at in map(cache.arrival.get, wanted) if at > now)
            done = now + (len(wanted) - len(late)) * options.expert_ms
            for arrival in late:
                waited += max(0.0, arrival - done)
                done = max(done, arrival) + options.expert_ms
            for key in coming(tokens, token, layer, way["layers"]):
                if max(cache.drive_free_at, now) >= done + options.layer_ms:
                    break
                if key in cache.arrival or rng.random() > way["recall"]:
                    continue
                foreseen_kept.add(key)
                cache.read(key, now, wanted | foreseen_kept)
                wrong = (key[0], rng.randrange(options.experts))
                if rng.random() < 1 / way["precision"] - 1 and wrong not in cache.arrival:
                    foreseen_kept.add(wrong)
                    cache.read(wrong, now, wanted | foreseen_kept)
                    wrong_count += 1
            now = done
        now += options.head_ms
    sums = (now - begin, waited, cache.read_count, wrong_count)
    return (total / options.count for total in sums)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    for name in ("layer-ms", "expert-ms", "head-ms", "read-ms", "bound-ms"):
        parser.add_argument("--" + name, type=float, required=True)
    parser.add_argument("--slots", type=int, nargs="+", required=True)
    parser.add_argument("--recall", type=float, default=0.73, help="of guesses, of what is missing")
    parser.add_argument("--precision", type=float, default=0.80, help="of guesses that are read")
    parser.add_argument("--skip", type=int, default=600, help="tokens that only fill the cache")
    parser.add_argument("--count", type=int, default=300, help="tokens behind them, which count")
    options = parser.parse_args()
    tokens = read_trace(options.trace)
    options.experts = 1 + max(max(experts) for token in tokens for experts in token)
    if len(tokens) < options.skip + options.count:
        parser.error(f"{options.trace} has {len(tokens)} tokens, --skip and --count ask for more")
    ways = [("nothing", {"layers": 0, "recall": 1, "precision": 1}),
            ("the next layer, as guessed", {"layers": 1, "recall": options.recall,
                                            "precision": options.precision})]
    ways += [(f"all of the next {layers}", {"layers": layers, "recall": 1, "precision": 1})
             for layers in (1, 2, 3, len(tokens[0]))]
    print("| slots | known | ms a token | of it waiting | reads | of the bound |")
    print("|---|---|---|---|---|---|")
    for all_slots in options.slots:
        options.slots = all_slots
        for name, way in ways:
            ms, waited, reads, wrong = replay(tokens, options, way)
            bound = max(options.bound_ms, (reads - wrong) * options.read_ms)
            print(f"| {all_slots} | {name} | {ms:.1f} | {waited:.1f} | {reads:.1f} "
                  f"| {100 * bound / ms:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
