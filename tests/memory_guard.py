#!/usr/bin/env python3
"""The memory guard in a real memory cgroup: the program lives with less than it was told there is,
says what it did, and gives the same tokens.

    memory_guard.py PROGRAM

SMOE_GUARD_NEIGHBOUR=1 also lets another process of the group take what is free.

Needs root and a memory cgroup of version 1 or 2 that may be made; otherwise exits with 77 (skipped)
and says why.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "bench" / "peers"))
import limited  # noqa: E402

MIB = 1 << 20
SKIPPED = 77
# Experts of 208 MiB.
SHAPE = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 512,
    "intermediate_size": 512, "moe_intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 128,
    "num_experts_per_tok": 4, "vocab_size": 4096, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "norm_topk_prob": True, "tie_word_embeddings": False,
    "hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False}
# Takes memory piece by piece, and holds it until its input ends.
NEIGHBOUR = """
import sys, time
held = []
for _ in range(%d):
    held.append(bytearray(b"x") * (2 << 20))
    time.sleep(0.01)
print("held", flush=True)
sys.stdin.read()
"""


def start(program: str, model: pathlib.Path, count: int, words: list[str],
          group: limited.Cgroup | None) -> subprocess.Popen[str]:
    prompt = ",".join(str(7 * i % 4096) for i in range(256))
    command = [program, "run", str(model), "--tokens", prompt, "--raw-ids", "-n", str(count),
               "--temperature", "1", "--seed", "5", "--chunk", "64", "--threads", "2", *words]
    environment = {**os.environ, "XDG_CACHE_HOME": str(model.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment, preexec_fn=group.join if group else None)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"exit status {process.returncode}, expected 0\n{errors}")
    return out, errors


def expect(condition: bool, what: str, found: object) -> None:
    if not condition:
        raise SystemExit(f"expected {what}, found:\n{found}")


def asked_too_much(program: str, model: pathlib.Path) -> None:
    """--memory names three times what the group has."""
    expected, _ = finish(start(program, model, 100, [], None))
    with limited.Cgroup(200 * MIB) as group:
        out, errors = finish(start(program, model, 100, ["--memory", "600MiB"], group))
    expect("expert cache: " in errors and "to be filled yet" in errors, "a smaller cache", errors)
    expect(out == expected, "the same tokens", out)
    print(f"asked too much:\n{errors}")


def neighbour_takes_memory(program: str, model: pathlib.Path) -> None:
    """Another process of the group takes what was free, and more, while the answer is written."""
    count = 3500
    expected, _ = finish(start(program, model, count, [], None))
    with limited.Cgroup(400 * MIB) as group:
        process = start(program, model, count, ["--memory", "380MiB"], group)
        neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR % 100], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     preexec_fn=group.join)
        out, errors = finish(process)
        held, _ = neighbour.communicate("")
        expect(neighbour.returncode == 0 and held == "held\n", "a neighbour that lives",
               neighbour.returncode)
        peak = group.peak()
    expect("expert cache: " in errors, "a smaller cache", errors)
    expect(out == expected, "the same tokens", f"{len(out)} bytes, not the same")
    print(f"a neighbour takes 200 MiB; peak of both {peak} bytes of {400 * MIB}:\n{errors}")


def main() -> None:
    program = sys.argv[1]
    limited.GROUP = f"smoe_guard_test_{os.getpid()}"
    try:
        with limited.Cgroup(400 * MIB):
            pass
    except (OSError, SystemExit) as error:
        print(f"skipped: no memory cgroup can be made here: {error}")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        shape = pathlib.Path(folder) / "config.json"
        shape.write_text(json.dumps(SHAPE))
        model = pathlib.Path(folder) / "guarded.smoe"
        subprocess.run([program, "synth", str(shape), str(model)], check=True, capture_output=True)
        asked_too_much(program, model)
        # Who is faster, the guard or the kernel's killer, depends on the machine: on request only.
        if os.environ.get("SMOE_GUARD_NEIGHBOUR") == "1":
            neighbour_takes_memory(program, model)
        else:
            print("skipped: a neighbour that takes memory; SMOE_GUARD_NEIGHBOUR=1 runs it")


if __name__ == "__main__":
    main()
