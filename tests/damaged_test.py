#!/usr/bin/env python3
"""Every damaged vault and trunk gets the answer that its class asks for, from tools and engine.

    damaged_test.py SMOE_BINARY

The cases lie beside the checkout in ../shared/reference/vaults/damaged; where they are absent this
exits 77. The shared checker looks at exit codes of inspect and verify; this one looks at messages
too, at the trunks, and at what the engine does. Classes (damaged.json says more):

  refuse       verify and the engine refuse, naming file and field
  interrupted  the same, and call it interrupted
  partial      inspect says so, the engine refuses for that reason
  report       verify or, for a trunk, the engine names it
  v1           inspect works, the engine asks for a config or an upgrade, an upgraded copy runs
  accept       the same tokens as the undamaged file (but where the damage is in the weights)
  either       a refusal or the same tokens
"""
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
PROJECT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = PROJECT.parent / "shared" / "reference"
DAMAGED = REFERENCE / "vaults" / "damaged"
CONFIG = REFERENCE / "checkpoints" / "qwen3_moe_micro"
SECONDS_MAX = 20
MEMORY_BYTES_MAX = 4 << 30  # a length from a damaged file that sizes an allocation exceeds this
CHANGED_WEIGHTS = {"bit_flip.smoe"}


class Smoe:
    def __init__(self, binary):
        self.binary = str(pathlib.Path(binary).resolve())
        # The address sanitizer reserves terabytes, so that no limit can be set there.
        self.limited = b"__asan_init" not in pathlib.Path(binary).read_bytes()

    def _limit(self):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))

    def __call__(self, *arguments):
        """(exit code or None for a crash or a hang, stdout, stderr)"""
        try:
            done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True,
                                  timeout=SECONDS_MAX, stdin=subprocess.DEVNULL,
                                  preexec_fn=self._limit if self.limited else None)
        except subprocess.TimeoutExpired:
            return None, "", f"no answer after {SECONDS_MAX} s"
        output, said = (x.decode("utf-8", "replace") for x in (done.stdout, done.stderr))
        crashed = done.returncode < 0 or done.returncode >= 128 or "Sanitizer" in said
        return None if crashed else done.returncode, output, said

    def generate(self, vault, trunk, config=CONFIG):
        extra = ["--config", config] if config else []
        return self("run", vault, "--trunk", trunk, *extra, "--tokens", "1,2,3", "-n", 4,
                    "--temperature", 0, "--raw-ids", "--arithmetic", "f32")


def named(field, said):
    """Whether the message has the field's words: `arch.magic` may be said as `arch block magic`."""
    return field.split(".")[-1].replace("_", "").lower() in said.replace("_", "").lower()


class Cases:
    def __init__(self, smoe, folder):
        self.smoe = smoe
        self.folder = pathlib.Path(folder)
        self.complaints = []
        spec = json.loads((DAMAGED / "damaged.json").read_text())
        self.records = spec["files"]
        self.vault = DAMAGED / spec["base"]
        self.trunk = DAMAGED / spec["trunk_base"]
        status, self.tokens, said = smoe.generate(self.vault, self.trunk)
        if status != 0:
            self.complaints.append(f"the undamaged vault does not run: {status} {said[-300:]}")

    def complain(self, record, what, said=""):
        subject = f"{record['file']} ({record['class']})"
        self.complaints.append(f"{subject}: {what}: {said.strip()[-200:]}")

    def want_refusal(self, record, command, answer, *words):
        status, output, said = answer
        if status is None:
            self.complain(record, f"{command} crashed or hung", said)
        elif status == 0:
            self.complain(record, f"{command} accepted it", output)
        else:
            for word in (record["file"], *words):
                if not named(word, said + output):
                    self.complain(record, f"{command} does not say '{word}'", said + output)

    def want_same_tokens(self, record, answer):
        status, output, said = answer
        if status != 0:
            self.complain(record, "run refused it", said)
        elif output != self.tokens and record["file"] not in CHANGED_WEIGHTS:
            self.complain(record, f"run says {output.strip()}, want {self.tokens.strip()}")

    def check_trunk(self, record):
        answer = self.smoe.generate(self.vault, self.folder / record["file"])
        self.want_refusal(record, "run", answer)

    def check_vault(self, record):
        path = self.folder / record["file"]
        kind = record["class"]
        inspected, verified = self.smoe("inspect", path), self.smoe("verify", path)
        ran = self.smoe.generate(path, self.trunk)
        for command, answer in (("inspect", inspected), ("verify", verified), ("run", ran)):
            if answer[0] is None:
                self.complain(record, f"{command} crashed or hung", answer[2])
            if "\x1b" in answer[1] + answer[2]:
                self.complain(record, f"{command} lets a terminal escape through")
        field = [record["field"]] if "field" in record else []
        if kind in ("refuse", "interrupted"):
            words = ["interrupt"] if kind == "interrupted" else field
            # Some lies show only against the trunk, which verify does not have.
            if verified[0] != 0:
                self.want_refusal(record, "verify", verified, *words)
            self.want_refusal(record, "run", ran, *words)
        elif kind == "partial":
            if inspected[0] != 0 or "partial" not in (inspected[1] + inspected[2]).lower():
                self.complain(record, "inspect does not say partial", inspected[1] + inspected[2])
            self.want_refusal(record, "run", ran, "partial")
        elif kind == "report":
            self.want_refusal(record, "verify", verified)
            expert = f"{record['layer']}.{record['expert']}"
            if expert not in verified[1] + verified[2]:
                self.complain(record, f"verify does not name expert {expert}",
                              verified[1] + verified[2])
        elif kind == "accept":
            if inspected[0] != 0:
                self.complain(record, "inspect refused it", inspected[2])
            self.want_same_tokens(record, ran)
        elif kind == "either" and ran[0] == 0:
            self.want_same_tokens(record, ran)
        elif kind == "v1":
            self.check_old(record, path, inspected)

    def check_old(self, record, path, inspected):
        if inspected[0] != 0:
            self.complain(record, "inspect refused it", inspected[2])
        answer = self.smoe.generate(path, self.trunk, config=None)
        self.want_refusal(record, "run without config", answer, "upgrade")
        copy = self.folder / "upgraded" / record["file"]
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
        status, _, said = self.smoe("upgrade", copy, "--config", CONFIG)
        if status != 0:
            self.complain(record, "upgrade refused it", said)
        else:
            self.want_same_tokens(record, self.smoe.generate(copy, self.trunk, config=None))

    def check_all(self):
        for record in self.records:
            if record["file"].endswith(".smoe"):
                self.check_vault(record)
            else:
                self.check_trunk(record)
        return self.complaints


def main(arguments):
    if not (DAMAGED / "damaged.json").is_file():
        print(f"skipped: {DAMAGED} is absent")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="smoe_damaged_") as folder:
        subprocess.run([sys.executable, str(DAMAGED / "apply_damage.py"),
                        str(DAMAGED / "damaged.json"), "all", folder], check=True)
        cases = Cases(Smoe(arguments[0]), folder)
        complaints = cases.check_all()
        for line in complaints:
            print(line)
        print(f"{len(cases.records)} damaged files, {len(complaints)} wrong answers")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
