#!/usr/bin/env python3
"""Runs one kind of the shared reference check against a built smoe, as one test.

    reference.py SMOE_BINARY KIND [NAME...]     KIND: logits, vaults, vault-logits, damaged-vaults,
                                                stores

The data and its checker lie beside the checkout, in ../shared/reference; where they are absent this
exits 77, which ctest counts as skipped. `damaged-vaults` is the vault half of the checker's
`damaged`: the checker sees a folder whose list of damaged stores is empty. For `vault-logits` it
sees a folder that also has the vaults which vaults.json calls identical to another.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PROJECT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = PROJECT.parent / "shared" / "reference"
# A sanitizer's finding must not look like a refusal: the checker calls 128 and above a crash.
SANITIZER_EXIT = "exitcode=134"


def python_with_numpy():
    """The first Python that has numpy, or None. A virtual environment on PATH may lack it."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
            return python
    return None


def vault_half(folder):
    """Makes in `folder` a reference folder with the real vaults and no damaged stores."""
    root = pathlib.Path(folder)
    (root / "nvfp4" / "damaged").mkdir(parents=True)
    (root / "nvfp4" / "damaged" / "damaged.json").write_text('{"stores": []}')
    for name in ("vaults", "checkpoints", "goldens"):
        (root / name).symlink_to(REFERENCE / name)
    return root


def all_vaults(folder):
    """Makes in `folder` a reference folder in which every vault with a golden is a file."""
    root = pathlib.Path(folder)
    (root / "checkpoints").symlink_to(REFERENCE / "checkpoints")
    vaults = root / "vaults"
    vaults.mkdir()
    for entry in (REFERENCE / "vaults").iterdir():
        (vaults / entry.name).symlink_to(entry)
    for vault in json.loads((vaults / "vaults.json").read_text())["vaults"].values():
        twin = vault.get("identical_to")
        if twin and "file" in vault:
            (vaults / vault["file"]).symlink_to(REFERENCE / "vaults" / f"{twin}.smoe")
    return root


def check(smoe, kind, names):
    python = python_with_numpy()
    if python is None:
        print("no Python with numpy: looked at python3 on PATH and in /usr/bin; run tools/setup.sh")
        return 1
    environment = dict(os.environ, SMOE=str(pathlib.Path(smoe).resolve()))
    for variable in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
        others = environment.get(variable)
        environment[variable] = f"{others}:{SANITIZER_EXIT}" if others else SANITIZER_EXIT
    with tempfile.TemporaryDirectory(prefix="smoe_reference_") as folder:
        root = REFERENCE
        if kind == "damaged-vaults":
            kind, root = "damaged", vault_half(folder)
        elif kind == "vault-logits":
            root = all_vaults(folder)
        command = [python, str(REFERENCE / "check.py"), kind, str(root), *names]
        return subprocess.run(command, cwd=PROJECT, env=environment).returncode


def main(arguments):
    if len(arguments) < 2:
        print(__doc__)
        return 2
    smoe, kind, *names = arguments
    if not (REFERENCE / "check.py").is_file():
        print(f"skipped: {REFERENCE / 'check.py'} is absent")
        return SKIPPED
    return check(smoe, kind, names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
