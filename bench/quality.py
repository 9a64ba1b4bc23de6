#!/usr/bin/env python3
"""Prints the tables of docs/quality.md: what each format of tiny-moe's experts and trunk costs and
keeps.

    python3 bench/quality.py build/release/smoe [--arithmetic int8] [--work FOLDER]

The text is what models/tiny-moe/train.py measured on and never trained on: the same 240 documents
of make_data.py, chats rendered by the model's own template. Everything is deterministic.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

PROJECT = pathlib.Path(__file__).resolve().parent.parent
MODEL = PROJECT / "models" / "tiny-moe"
DOCUMENT_COUNT = 240  # as in train.py
FORMATS = [
    ("NVFP4", ["pack"]),
    ("NVFP4, plain quantiser", ["pack", "--quantiser", "amax"]),
    ("Q4, group 32", ["shatter", "--group-size", "32"]),
    ("Q4, group 64", ["shatter"]),
    ("Q4, group 64, original quantiser", ["shatter", "--quantiser", "reference"]),
    ("Q4, group 128", ["shatter", "--group-size", "128"]),
    ("Q2, group 32", ["shatter", "--bits", "2", "--group-size", "32"]),
    ("Q2, group 64", ["shatter", "--bits", "2"]),
]

# Each against f32 arithmetic with the trunk as it is, over the same vault.
TRUNKS = [
    ("f32", "int8"),
    ("int8", "source"),
    ("int8", "int8"),
    ("int8", "source,embedding=int8"),
    ("int8", "source,head=int8"),
    ("int8", "source,attention=int8"),
    ("int8", "source,output=int8"),
    ("int8", "q4"),
    ("int8", "int8,head=q4"),
]
# Each against f32 arithmetic with the trunk as it is and keys and values in f32. Where nothing else
# is rounded, and with the default of everything else.
KV_KINDS = [("f32", "source", kind) for kind in ("f16", "int8")]
KV_KINDS += [("int8", "int8", kind) for kind in ("f32", "f16", "int8")]
GATE = {"kl": 1e-3, "top1": 0.99, "perplexity": 0.005}  # of the default, int8 and int8


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, text=True,
                          capture_output=True).stdout


def held_out_documents():
    sys.path.insert(0, str(MODEL))
    import make_data

    rng = random.Random(99)
    documents = []
    while len(documents) < DOCUMENT_COUNT:
        kind, make, _ = make_data.PLAN[len(documents) % len(make_data.PLAN)]
        document = make_data.document(rng, kind, make)
        if "text" in document or make_data.held_out(document["messages"]):
            documents.append(document)
    return documents


def write_text(smoe, work):
    texts = []
    for document in held_out_documents():
        if "text" in document:
            texts.append(document["text"])
            continue
        chat = work / "chat.json"
        said = {key: document[key] for key in ("messages", "tools") if key in document}
        chat.write_text(json.dumps(said))
        texts.append(run(smoe, "template", MODEL, "--messages", chat, "--no-generation-prompt"))
    path = work / "held_out.txt"
    path.write_text("<|endoftext|>".join(texts) + "<|endoftext|>")
    return path


def mib(count):
    return f"{count / 2**20:.2f}"


def row(name, side, result):
    weights = result["weights"]["all"]
    noise = [weights[p]["rmse"] ** 2 for p in ("gate", "up", "down")]
    cells = [name, mib(side["drive_bytes"]), mib(side["expert_bytes"]), mib(side["token_bytes"]),
             f"{side['perplexity']:.4f}"]
    if side is result["a"]:
        return cells + ["-"] * 4
    logits = result["logits"]
    return cells + [f"{(sum(noise) / 3) ** 0.5:.5f}", f"{logits['kl_mean']:.5f}",
                    f"{logits['kl_max']:.2f}", f"{100 * logits['top1_agreement']:.2f} %"]


def trunk_row(arithmetic, trunk, result):
    a, b, logits = result["a"], result["b"], result["logits"]
    errors = [part["relative_rmse"] for part in b["trunk"]["parts"].values()
              if part["relative_rmse"] is not None]
    change = b["perplexity"] / a["perplexity"] - 1
    if (arithmetic, trunk) == ("int8", "int8"):
        held = (logits["kl_mean"] < GATE["kl"] and logits["top1_agreement"] > GATE["top1"]
                and abs(change) < GATE["perplexity"])
        print(f"the gate of the default {'holds' if held else 'DOES NOT HOLD'}\n")
    return [arithmetic, trunk, mib(b["trunk"]["bytes"]),
            f"{100 * max(errors):.2f} %" if errors else "-", f"{b['perplexity']:.4f}",
            f"{100 * change:+.3f} %", f"{logits['kl_mean']:.2e}", f"{logits['kl_max']:.2f}",
            f"{100 * logits['top1_agreement']:.2f} %"]


def trunk_rows(smoe, store, text, threads):
    rows = []
    for arithmetic, trunk in TRUNKS:
        result = json.loads(run(smoe, "compare", store, store, "--reference", "--text", text,
                                "--json", "--arithmetic", arithmetic, "--trunk-format", trunk,
                                "--threads", threads))
        rows.append(trunk_row(arithmetic, trunk, result))
    return rows


def kv_rows(smoe, store, text, threads):
    rows = []
    for arithmetic, trunk, kind in KV_KINDS:
        result = json.loads(run(smoe, "compare", store, store, "--reference", "--text", text,
                                "--json", "--arithmetic", arithmetic, "--trunk-format", trunk,
                                "--kv", kind, "--threads", threads))
        a, b, logits = result["a"], result["b"], result["logits"]
        rows.append([arithmetic, trunk, kind, f"{b['perplexity']:.4f}",
                     f"{100 * (b['perplexity'] / a['perplexity'] - 1):+.3f} %",
                     f"{logits['kl_mean']:.2e}", f"{logits['kl_max']:.2f}",
                     f"{100 * logits['top1_agreement']:.2f} %"])
    return rows


def print_table(head, rows):
    print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("smoe")
    parser.add_argument("--arithmetic", default="int8", choices=("int8", "f32"))
    parser.add_argument("--threads", default="0", help="compute threads; they change no figure")
    parser.add_argument("--work", help="folder for text and stores (default: a temporary one)")
    options = parser.parse_args()
    smoe = pathlib.Path(options.smoe).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(options.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        text = write_text(smoe, work)
        rows = []
        for i, (name, (command, *more)) in enumerate(FORMATS):
            out = work / f"format{i}{'' if command == 'pack' else '.smoe'}"
            run(smoe, command, MODEL, out, "--force", *more)
            result = json.loads(run(smoe, "compare", MODEL, out, "--text", text, "--json",
                                    "--arithmetic", options.arithmetic,
                                    "--trunk-format", "source",
                                    "--threads", options.threads))
            if not rows:
                rows.append(row("bf16", result["a"], result))
            rows.append(row(name, result["b"], result))
            if name == "Q4, group 64":
                trunks = trunk_rows(smoe, out, text, options.threads)
                kinds = kv_rows(smoe, out, text, options.threads)
        print(f"{result['text']['tokens']} tokens, arithmetic {options.arithmetic}")
    print_table(["experts", "drive, MiB", "experts, MiB", "T, MiB", "perplexity", "weight RMSE",
                 "KL mean", "KL max", "top-1"], rows)
    print_table(["arithmetic", "trunk", "MiB", "largest error", "perplexity", "change", "KL mean",
                 "KL max", "top-1"], trunks)
    print_table(["arithmetic", "trunk", "keys and values", "perplexity", "change", "KL mean",
                 "KL max", "top-1"], kinds)


if __name__ == "__main__":
    main()
