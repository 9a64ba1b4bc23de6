#!/usr/bin/env python3
"""smoe and llama.cpp in turn, everything in memory: medians, ratios, share of the DRAM's rate.

    resident.py --smoe build/release/smoe --model MODEL --peers FOLDER --gguf MODEL.gguf
                [--runs 2:512:64 2:128:64 1:32:64] [--modes mapped repacked] [--rounds 5]
                [--variant native|avx512|avx2] [--isa TABLE] [--smoe-options WORD...]
                [--results FILE]

A round is: DRAM meter, smoe, DRAM meter, each mode of the peer. A run is THREADS:PROMPT:DECODE.
With --results rounds are added to FILE, one line each, and the summary is of all that are in it: so
many short calls give one result. --rounds 0 only sums up. README.md says how to read it.
"""
import argparse
import statistics
import time
from collections.abc import Iterator

from peers import (MODES, Json, Peer, Results, Run, parser_of, row, run_json, smoe_environment,
                   spread)

DRAM_GIB = 2
DRAM_PASSES = 3


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", nargs="+", type=Run.parse,
                        default=[Run(2, 512, 64), Run(2, 128, 64), Run(1, 32, 64)])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["mapped", "repacked"])
    return parser.parse_args()


def measure_dram(options: argparse.Namespace) -> Json:
    rates = {}
    for threads in sorted({run.threads for run in options.runs}):
        meter = [options.peers / "bin" / "membw", DRAM_GIB, threads, DRAM_PASSES]
        rates[str(threads)] = run_json(meter)["bytes_per_second"]
    return rates


def measure_smoe(options: argparse.Namespace, seed: int) -> list[Json]:
    extra = [f"--{word}" for word in options.smoe_options]
    runs = []
    for run in options.runs:
        command = [options.smoe, "bench", options.model, "--threads", run.threads, "--prompt",
                   run.prompt, "--tokens", run.decode, "--rounds", 1, "--seed", seed, "--json"]
        runs += run_json(command + extra, smoe_environment(options))["runs"]
    return runs


def measure_round(options: argparse.Namespace, seed: int) -> Json:
    peer = Peer(options.peers, options.variant, options.gguf)
    result: Json = {"time": time.strftime("%F %T"), "runs": [str(run) for run in options.runs]}
    result |= {"isa": options.isa, "variant": options.variant, "dram": [measure_dram(options)]}
    result["smoe"] = measure_smoe(options, seed)
    result["peer"] = {}
    for mode in options.modes:
        result["dram"].append(measure_dram(options))
        runs = [f"-{options.runs[0].threads}:128:1", *options.runs]
        result["peer"][mode] = run_json(peer.command(mode, seed, runs), peer.environment())
    return result


class Figures:
    """All rounds, by what was measured."""

    def __init__(self, rounds: list[Json]) -> None:
        self.rounds = rounds
        self.modes = sorted({mode for entry in rounds for mode in entry["peer"]}, key=MODES.index)
        self.runs = [Run.parse(text) for text in rounds[-1]["runs"]]
        if any(entry["runs"] != rounds[-1]["runs"] for entry in rounds):
            raise SystemExit("the rounds in --results have other --runs; name another file")

    def dram(self, threads: int) -> list[float]:
        return [rates[str(threads)] for entry in self.rounds for rates in entry["dram"]]

    def smoe(self, index: int, phase: str) -> list[float]:
        return [entry["smoe"][index][phase]["tokens_per_second"]["median"]
                for entry in self.rounds]

    def peer(self, mode: str, index: int, phase: str) -> list[float]:
        return [entry["peer"][mode]["runs"][index][phase]["tokens_per_second"]
                for entry in self.rounds if mode in entry["peer"]]

    def smoe_bytes(self) -> float:
        decode = self.rounds[-1]["smoe"][0]["decode"]
        return float(decode["trunk_bytes"] + decode["active_expert_bytes"])

    def peer_bytes(self) -> float:
        return float(next(iter(self.rounds[-1]["peer"].values()))["weight_bytes_per_token"])

    def warnings(self) -> Iterator[str]:
        for entry in self.rounds:
            for run, figures in zip(entry["runs"], entry["smoe"]):
                if figures["expert_misses"]:
                    yield (f"{entry['time']}: smoe, run {run}: {figures['expert_misses']} experts "
                           "read from the drive, so it is not resident")


def summary(figures: Figures) -> Iterator[str]:
    last = figures.rounds[-1]
    system = next(iter(last["peer"].values()))["system"]
    first = last["smoe"][0]
    yield f"rounds   {len(figures.rounds)}, medians (min to max)"
    yield f"smoe     {first['kernels']} table, experts {first['expert_format']}, trunk " + (
        f"{first['trunk_format']}; {figures.smoe_bytes() / 1e6:.1f} MB of weights a token")
    yield f"peer     {last['variant']}: {system}"
    yield f"         {figures.peer_bytes() / 1e6:.1f} MB of weights a token"
    for threads in sorted({run.threads for run in figures.runs}):
        rates = [rate / 1e9 for rate in figures.dram(threads)]
        yield f"DRAM     {threads} threads, huge pages: {spread(rates)} GB/s"
    for index, run in enumerate(figures.runs):
        for phase in ("decode", "prefill"):
            yield from compared(figures, index, run, phase)
    yield from (f"WARNING  {text}" for text in figures.warnings())


def compared(figures: Figures, index: int, run: Run, phase: str) -> Iterator[str]:
    tokens = run.decode if phase == "decode" else run.prompt
    yield f"{phase}, {run.threads} threads, {tokens} tokens" + (
        f" behind {run.prompt}" if phase == "decode" else "")
    rows = [("smoe", figures.smoe(index, phase), figures.smoe_bytes())]
    rows += [(mode, figures.peer(mode, index, phase), figures.peer_bytes())
             for mode in figures.modes]
    dram = statistics.median(figures.dram(run.threads))
    ours = statistics.median(rows[0][1])
    for name, rates, weight_bytes in rows:
        rate = statistics.median(rates)
        line = f"  {name:<9} {spread(rates):>28} tok/s"
        if phase == "decode":
            moved = weight_bytes * rate
            line += f"  {moved / 1e9:6.2f} GB/s, {100 * moved / dram:5.1f} % of DRAM"
        if name != "smoe":
            line += f"  smoe is {ours / rate:.2f} x"
        yield line


def rows(figures: Figures, options: argparse.Namespace) -> Iterator[str]:
    """For docs/bench/log.tsv: of each run and phase, smoe's with the peer's beside it."""
    for index, run in enumerate(figures.runs):
        for phase in ("decode", "prefill"):
            ours = figures.smoe(index, phase)
            peers = [f"{mode} {statistics.median(figures.peer(mode, index, phase)):.2f}"
                     for mode in figures.modes]
            dram = statistics.median(figures.dram(run.threads)) / 1e9
            setup = figures.rounds[-1]["smoe"][0]
            yield row(f"{options.model.name}, {setup['trunk_format']} trunk",
                      f"bench/peers/resident.py, {phase} of {run}, {setup['kernels']} table",
                      "resident", ours, "tok/s", int(figures.smoe_bytes()),
                      f"DRAM {dram:.1f} GB/s; llama.cpp {options.variant}: {', '.join(peers)}",
                      "side by side, alternating")


def main() -> None:
    options = arguments()
    results = Results(options.results)
    for _ in range(options.rounds):
        results.add(measure_round(options, seed=len(results.items) + 1))
    if not results.items:
        raise SystemExit("--rounds 0 and nothing in --results")
    figures = Figures(results.items)
    print("\n".join(summary(figures)))
    print("\n".join(rows(figures, options)))


if __name__ == "__main__":
    main()
