#!/usr/bin/env python3
"""smoe and llama.cpp in turn under a memory limit, caches cold: speed, first token, bytes read.

    limited.py --smoe build/release/smoe --model MODEL --peers FOLDER --gguf MODEL.gguf
               [--limits 2.5e9 2e9 1.5e9] [--read-ahead 128] [--run 2:128:64] [--rounds 5]
               [--variant native|avx512|avx2] [--isa TABLE] [--smoe-options WORD...]
               [--results FILE]

Needs root: a memory cgroup (version 1 or 2), which counts page cache too, and the read-ahead of the
peer's drive, in KiB, which decides how fast it is; several values are tried in turn and the old one
comes back. The peer maps its file: its only mode beyond memory. README.md says how to read this.

smoe is timed from outside: first and last token as they appear on its standard output, bytes from
/proc at those moments. Both times to the first token include loading.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import time
from collections.abc import Iterator

from peers import Json, Peer, Results, Run, parser_of, row, smoe_environment, spread

GROUP = "smoe_bench_peers"
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class Cgroup:
    """A memory group of either version, removed at the end."""

    def __init__(self, limit: int) -> None:
        version1 = CGROUPS / "memory"
        unified = CGROUPS if (CGROUPS / "cgroup.controllers").exists() else CGROUPS / "unified"
        self.is_v1 = version1.is_dir()
        if not self.is_v1 and "memory" not in (unified / "cgroup.controllers").read_text().split():
            raise SystemExit(f"{unified}: no memory controller, and no {version1}")
        self.path = (version1 if self.is_v1 else unified) / GROUP
        self.limit = limit

    def __enter__(self) -> "Cgroup":
        if not self.is_v1:
            (self.path.parent / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir(exist_ok=True)
        name = "memory.limit_in_bytes" if self.is_v1 else "memory.max"
        (self.path / name).write_text(str(self.limit))
        if not self.is_v1 and (self.path / "memory.swap.max").exists():
            (self.path / "memory.swap.max").write_text("0")
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_v1:  # else pages of its files stay charged to it
            (self.path / "memory.force_empty").write_text("0")
        self.path.rmdir()

    def join(self) -> None:
        """In the child, between fork and exec."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int | None:
        """None where the kernel does not say (version 2 before Linux 5.19)."""
        name = "memory.max_usage_in_bytes" if self.is_v1 else "memory.peak"
        path = self.path / name
        return int(path.read_text()) if path.exists() else None


@contextlib.contextmanager
def read_ahead(file: pathlib.Path, kib: int) -> Iterator[None]:
    """Sets it for the drive that `file` lies on."""
    number = file.stat().st_dev
    device = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    queue = next((folder / "queue" for folder in (device, device.parent)
                  if (folder / "queue").is_dir()), None)
    if queue is None:
        raise SystemExit(f"{file}: {device} has no queue to set the read-ahead of")
    setting = queue / "read_ahead_kb"
    before = setting.read_text()
    setting.write_text(str(kib))
    try:
        yield
    finally:
        setting.write_text(before)


def make_cold(path: pathlib.Path) -> None:
    """Takes the files out of the page cache, and nobody else's."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_bytes(process: int) -> int:
    for line in pathlib.Path(f"/proc/{process}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/{process}/io: no read_bytes")


def stopped(command: list[str], returncode: int, said: str) -> SystemExit:
    return SystemExit(f"{' '.join(command)}\n{said}exit status {returncode}")


def measure_smoe(options: argparse.Namespace, group: Cgroup, seed: int) -> Json:
    make_cold(options.model)
    pick = random.Random(seed)
    prompt = ",".join(str(pick.randrange(options.vocab)) for _ in range(options.run.prompt))
    command = [str(options.smoe), "run", str(options.model), "--tokens", prompt, "--raw-ids", "-n",
               str(options.run.decode + 1), "--temperature", "1", "--seed", str(seed),
               "--threads", str(options.run.threads), "--warm-start", "off"]
    command += [f"--{word}" for word in options.smoe_options]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          preexec_fn=group.join,
                          env={**os.environ, **smoe_environment(options)}) as process:
        assert process.stdout and process.stderr
        marks: list[tuple[float, int, int]] = []  # seconds, bytes read, tokens printed
        said = b""
        while chunk := os.read(process.stdout.fileno(), 65536):
            said += chunk
            count = len(said.replace(b",", b" ").split())
            if chunk.strip():
                marks.append((time.monotonic() - start, read_bytes(process.pid), count))
        errors = process.stderr.read().decode()
    if process.returncode:
        raise stopped(command, process.returncode, errors)
    if len(marks) < 2 or marks[-1][2] != options.run.decode + 1:
        raise stopped(command, 0, f"{marks[-1][2] if marks else 0} tokens in {len(marks)} pieces, "
                                  f"expected {options.run.decode + 1}\n")
    first, last = marks[0], marks[-1]
    tokens = last[2] - first[2]
    return {"first_token_seconds": first[0], "first_token_bytes": first[1],
            "decode_tokens": tokens, "tokens_per_second": tokens / (last[0] - first[0]),
            "bytes_per_token": (last[1] - first[1]) / tokens, "peak": group.peak()}


def measure_peer(options: argparse.Namespace, group: Cgroup, seed: int, kib: int) -> Json:
    make_cold(options.gguf)
    peer = Peer(options.peers, options.variant, options.gguf)
    command = peer.command("mapped", seed, [options.run])
    with read_ahead(options.gguf, kib):
        done = subprocess.run(command, text=True, capture_output=True, preexec_fn=group.join,
                              env={**os.environ, **peer.environment()})
    if done.returncode:
        raise stopped(command, done.returncode, done.stderr)
    report = json.loads(done.stdout)
    prefill, decode = report["runs"][0]["prefill"], report["runs"][0]["decode"]
    return {"first_token_seconds": report["load_seconds"] + prefill["seconds"],
            "first_token_bytes": report["load_read_bytes"] + prefill["read_bytes"],
            "decode_tokens": decode["tokens"], "tokens_per_second": decode["tokens_per_second"],
            "bytes_per_token": decode["read_bytes"] / decode["tokens"], "peak": group.peak()}


def measure_round(options: argparse.Namespace, seed: int) -> Iterator[Json]:
    for limit in options.limits:
        with Cgroup(limit) as group:
            yield {"limit": limit, "who": "smoe", **measure_smoe(options, group, seed)}
        for kib in options.read_ahead:
            with Cgroup(limit) as group:
                yield {"limit": limit, "who": f"peer, read-ahead {kib} KiB",
                       **measure_peer(options, group, seed, kib)}


def summary(results: list[Json]) -> Iterator[str]:
    for limit in sorted({result["limit"] for result in results}, reverse=True):
        yield f"limit {limit / 1e9:.2f} GB"
        ours: dict[str, float] = {}
        for who in sorted({r["who"] for r in results}, key=lambda who: (who != "smoe", who)):
            mine = [r for r in results if r["who"] == who and r["limit"] == limit]
            if not mine:
                continue
            speed = [r["tokens_per_second"] for r in mine]
            first = [r["first_token_seconds"] for r in mine]
            read = [r["bytes_per_token"] / 1e6 for r in mine]
            before = statistics.median(r["first_token_bytes"] for r in mine) / 1e6
            peak = max(r["peak"] or 0 for r in mine) / 1e6
            yield (f"  {who:<26} {spread(speed)} tok/s, {spread(read)} MB a token; first token "
                   f"{spread(first)} s, {before:.0f} MB; peak {peak:.0f} MB, {len(mine)} rounds")
            medians = {"speed": statistics.median(speed), "read": statistics.median(read),
                       "first": statistics.median(first)}
            if who == "smoe":
                ours = medians
            elif ours:
                yield (f"    smoe: {ours['speed'] / medians['speed']:.2f} x its speed, "
                       f"{ours['read'] / max(medians['read'], 1e-9):.2f} x its bytes, "
                       f"{ours['first'] / medians['first']:.2f} x its time to the first token")


def rows(results: list[Json], options: argparse.Namespace) -> Iterator[str]:
    """For docs/bench/log.tsv."""
    for limit in sorted({result["limit"] for result in results}, reverse=True):
        ours = [r for r in results if r["who"] == "smoe" and r["limit"] == limit]
        theirs = [r for r in results if r["who"] != "smoe" and r["limit"] == limit]
        best = max((statistics.median(r["tokens_per_second"] for r in theirs if r["who"] == who),
                    who) for who in {r["who"] for r in theirs})
        yield row(options.model.name, f"bench/peers/limited.py, decode of {options.run}",
                  f"cold, {limit} bytes", [r["tokens_per_second"] for r in ours], "tok/s",
                  int(statistics.median(r["bytes_per_token"] for r in ours)),
                  f"llama.cpp {options.variant}, {best[1]}: {best[0]:.2f}", "alternating")


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--limits", nargs="+", type=lambda text: int(float(text)),
                        default=[2_500_000_000, 2_000_000_000, 1_500_000_000], metavar="BYTES")
    parser.add_argument("--read-ahead", nargs="+", type=int, default=[128], metavar="KIB")
    parser.add_argument("--run", type=Run.parse, default=Run(2, 128, 64))
    parser.add_argument("--vocab", type=int, default=32000, help="of the random prompt")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    results = Results(options.results)
    for _ in range(options.rounds):
        for result in measure_round(options, seed=len(results.items) + 1):
            results.add(result)
    if not results.items:
        raise SystemExit("--rounds 0 and nothing in --results")
    print("\n".join(summary(results.items)))
    print("\n".join(rows(results.items, options)))


if __name__ == "__main__":
    main()
