"""What resident.py and limited.py share: running both programs, medians, a row for the log."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent
MODES = ("mapped", "repacked", "default")  # of peer_bench
Json = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Threads, tokens of the prompt, tokens decoded behind it."""

    threads: int
    prompt: int
    decode: int

    @staticmethod
    def parse(text: str) -> "Run":
        try:
            run = Run(*(int(part) for part in text.split(":")))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(
                f"{text!r}, expected THREADS:PROMPT:DECODE") from None
        if min(run.threads, run.prompt, run.decode) < 1:
            raise argparse.ArgumentTypeError(f"{text}, expected three numbers above 0")
        return run

    def __str__(self) -> str:
        return f"{self.threads}:{self.prompt}:{self.decode}"


def run_json(command: Sequence[object], environment: dict[str, str] | None = None) -> Json:
    """The JSON object that a program prints. Stops with the program's own words if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, capture_output=True,
                          env={**os.environ, **(environment or {})})
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}exit status {done.returncode}")
    report: Json = json.loads(done.stdout)
    return report


@dataclass
class Peer:
    """llama.cpp as build.sh made it; `variant` has the kernels."""

    folder: pathlib.Path
    variant: str
    gguf: pathlib.Path

    def environment(self) -> dict[str, str]:
        kernels = self.folder / self.variant / "bin"
        if not kernels.is_dir():
            raise SystemExit(f"{kernels}: no such folder; run bench/peers/build.sh")
        return {"LD_LIBRARY_PATH": f"{kernels}:{self.folder / 'native' / 'bin'}"}

    def command(self, mode: str, seed: int, runs: Sequence[object]) -> list[str]:
        words = [self.folder / "bin" / "peer_bench", self.gguf, mode, seed, *runs]
        return [str(word) for word in words]


def parser_of(about: str) -> argparse.ArgumentParser:
    """With what both scripts ask for."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    for name, text in (("--smoe", "the program"), ("--model", "a vault or a record store"),
                       ("--peers", "what build.sh made"), ("--gguf", "the model, by to_gguf.py")):
        parser.add_argument(name, type=pathlib.Path, required=True, help=text)
    parser.add_argument("--variant", default="native", help="the peer's kernels")
    parser.add_argument("--isa", help="smoe's kernels, as SMOE_ISA (default: the best)")
    parser.add_argument("--smoe-options", nargs="*", default=[], metavar="WORD",
                        help="for smoe, without the leading --: cache=1GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=pathlib.Path, help="measurements are added to this file")
    return parser


def smoe_environment(options: argparse.Namespace) -> dict[str, str]:
    return {"SMOE_ISA": options.isa} if options.isa else {}


class Results:
    """JSON lines, in a file if one is named: then also those of earlier calls."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self.path = path
        self.items: list[Json] = []
        if path and path.exists():
            self.items = [json.loads(line) for line in path.read_text().splitlines()]

    def add(self, item: Json) -> None:
        self.items.append(item)
        if self.path:
            with open(self.path, "a") as out:
                out.write(json.dumps(item) + "\n")


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def machine() -> str:
    model = platform.processor()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"


def commit() -> str:
    done = subprocess.run(["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"], text=True,
                          capture_output=True)
    return done.stdout.strip() or "unknown"


def row(model: str, command: str, cache: str, values: Sequence[float], unit: str, size: int,
        bound: str, why: str) -> str:
    """A line for docs/bench/log.tsv; the verdict is the reader's to fill in."""
    figures = [f"{value:.2f} {unit}"
               for value in (min(values), statistics.median(values), max(values))]
    return "\t".join([datetime.date.today().isoformat(), commit(), machine(), model, command, cache,
                      str(len(values)), *figures, str(size), bound, "", why])
