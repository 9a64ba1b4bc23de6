#!/usr/bin/env python3
"""Compiles headers of src/ by themselves: each must include what it uses.

    headers_alone.py COMPILER [HEADER...]

Without headers: those that no source of the same name includes first (tools/tidy.py asks that of
the others, so the build has proven them already). Checks the syntax only; makes no file.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

PROJECT = pathlib.Path(__file__).resolve().parent.parent
# Those of the build that change how a header reads (cmake/Compiler.cmake).
FLAGS = ["-std=c++20", "-march=x86-64-v2", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-Isrc"]
# What cmake/Module.cmake tells tests, and so the headers that tests share.
FLAGS += ['-DSMOE_SOURCE_DIR=""', '-DSMOE_SHARED_DIR=""', '-DSMOE_BINARY_DIR=""']


def unproven():
    for header in sorted((PROJECT / "src").rglob("*.h")):
        if not header.with_suffix(".cc").exists():
            yield str(header.relative_to(PROJECT))


def compile_alone(compiler, header):
    """Includes it from a source, twice: `#pragma once` in a main file is a warning."""
    name = os.path.relpath(header, "src")
    source = f'#include "{name}"\n#include "{name}"\n'
    command = [compiler, *FLAGS, "-x", "c++", "-"]
    if os.uname().machine != "x86_64":
        command.remove("-march=x86-64-v2")
    done = subprocess.run(command, input=source, text=True, capture_output=True, cwd=PROJECT)
    return header, done.returncode, done.stderr


def main(arguments):
    compiler, *headers = arguments
    headers = headers or list(unproven())
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, status, output in pool.map(lambda h: compile_alone(compiler, h), headers):
            if status != 0:
                failures += 1
                print(f"{header}:1: headers_alone: does not compile by itself\n{output[:2000]}")
    print(f"{len(headers)} headers compiled alone, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
