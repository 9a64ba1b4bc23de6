#!/usr/bin/env python3
"""Writes docs/third_party.txt, the list of what smoe is made with and under which licences.

    third_party.py            writes the file; asks cargo for the crates' licences
    third_party.py --check    compares the file with rust/text/Cargo.lock; without cargo or network

`smoe version --licenses` prints the file as it is.
"""
import json
import pathlib
import re
import subprocess
import sys

PROJECT = pathlib.Path(__file__).resolve().parent.parent
LIST = PROJECT / "docs" / "third_party.txt"
LOCK = PROJECT / "rust" / "text" / "Cargo.lock"
MANIFEST = PROJECT / "rust" / "text" / "Cargo.toml"

# Debian 12's versions, from the packages' copyright files. name, package, version, licence, use.
LIBRARIES = [
    ("CLI11", "libcli11-dev", "2.1.2", "BSD-3-Clause", "command line"),
    ("fmt", "libfmt-dev", "9.1.0", "MIT", "formatting"),
    ("GoogleTest", "libgtest-dev", "1.12.1", "BSD-3-Clause", "tests only"),
    ("libedit", "libedit-dev", "3.1", "BSD-3-Clause", "line editing in chat"),
    ("liburing", "liburing-dev", "2.3", "LGPL-2.1 or MIT", "reads by io_uring"),
    ("nlohmann json", "nlohmann-json3-dev", "3.11.2", "MIT", "JSON"),
    ("simdjson", "libsimdjson-dev", "3.0.1", "Apache-2.0", "JSON of checkpoints"),
    ("spdlog", "libspdlog-dev", "1.10.0", "MIT", "log"),
    ("tl-expected", "libexpected-dev", "1.0.0", "CC0-1.0", "results"),
    ("xxHash", "libxxhash-dev", "0.8.1", "BSD-2-Clause", "checksums"),
]

HEAD = """\
Third-party software in smoe

smoe itself is under the MIT licence (LICENSE). It is built with the software below, each under its
own licence. Made by tools/third_party.py.

C++ libraries, as Debian 12 packages them
"""
CRATES_HEAD = """
Rust crates of the text library, with the versions of rust/text/Cargo.lock
(all that the lock file names; some are used on other systems or while building only)
"""


def locked_crates():
    """(name, version) of each crate of the lock file that comes from elsewhere."""
    found = []
    for block in LOCK.read_text().split("[[package]]")[1:]:
        fields = dict(re.findall(r'^(name|version|source) = "([^"]*)"$', block, re.M))
        if "source" in fields:
            found.append((fields["name"], fields["version"]))
    return sorted(found)


def licences():
    """{(name, version): licence} as the crates' manifests state it."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked",
               "--manifest-path", str(MANIFEST)]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {(p["name"], p["version"]): (p["license"] or "see its files").replace("/", " OR ")
            for p in packages["packages"]}


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        yield "  " + "  ".join([*cells, row[-1]]).rstrip() + "\n"


def write():
    text = HEAD + "".join(table([(n, v, licence, use) for n, _, v, licence, use in LIBRARIES]))
    crates = locked_crates()
    stated = licences()
    rows = [(n, v, re.sub(r" +", " ", stated.get((n, v), "see its files"))) for n, v in crates]
    text += CRATES_HEAD + "".join(table(rows))
    LIST.write_text(text)
    print(f"{LIST.relative_to(PROJECT)}: {len(LIBRARIES)} libraries, {len(crates)} crates")
    return 0


def check():
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    listed = {tuple(line.split()[:2]) for line in lines if line.startswith("  ")}
    missing = [crate for crate in locked_crates() if crate not in listed]
    missing += [(n, v) for n, _, v, *_ in LIBRARIES
                if not any(line.split()[:len(n.split()) + 1] == [*n.split(), v] for line in lines)]
    crates = {tuple(line.split()[:2]) for line in lines[lines.index(CRATES_HEAD.split("\n")[1]):]
              if line.startswith("  ")} if CRATES_HEAD.split("\n")[1] in lines else set()
    stale = sorted(crates - set(locked_crates()))
    for what, names in (("missing", missing), ("no longer used", stale)):
        for name, version in names:
            print(f"{LIST.relative_to(PROJECT)}: {what}: {name} {version}")
    if missing or stale:
        print("run: python3 tools/third_party.py")
    return 1 if missing or stale else 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1:] == ["--check"] else write())
