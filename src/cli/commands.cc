#include "cli/command.h"

namespace smoe::cli {

namespace {

constexpr char kTalk[] = "Talk to a model";
constexpr char kConvert[] = "Make and mend models";
constexpr char kMeasure[] = "Look inside";
constexpr char kProgram[] = "About the program";

constexpr Command kCommands[] = {
    {"run", kTalk, "Answer one prompt",
     "smoe run --chat \"What is smoe?\"\n"
     "smoe run model.smoe -p \"Once upon a time\" -n 100 --temperature 0.8 --stats\n"
     "smoe run model.smoe --tokens 1,2,3 --raw-ids",
     DefineRun},
    {"chat", kTalk, "Hold a conversation in the terminal",
     "smoe chat\nsmoe chat model.smoe --system \"Answer in one word.\"", DefineChat},
    {"shatter", kConvert, "Convert a checkpoint into a .smoe vault (the Sculptor)",
     "smoe shatter Qwen3-30B-A3B/ qwen3-30b.smoe\n"
     "smoe shatter Qwen3-30B-A3B/ small.smoe --bits 2 --measure-error\n"
     "smoe shatter Qwen3-30B-A3B/ qwen3-30b.smoe --resume",
     DefineShatter},
    {"pack", kConvert, "Make an NVFP4 expert-record store of a checkpoint",
     "smoe pack Qwen3-30B-A3B-NVFP4/ qwen3-30b-records\n"
     "smoe pack Qwen3-30B-A3B/ qwen3-30b-records --dry-run\n"
     "smoe pack Qwen3-30B-A3B/ qwen3-30b-records --resume",
     DefinePack},
    {"convert", kConvert, "Turn a vault into a record store, or into another vault, or back",
     "smoe convert qwen3-30b.smoe qwen3-30b-nvfp4/\n"
     "smoe convert qwen3-30b.smoe small.smoe --bits 2 --original Qwen3-30B-A3B/",
     DefineConvert},
    {"synth", kConvert, "Make a model of a published shape with random weights, to measure with",
     "smoe synth qwen3-30b-a3b synth.smoe --layers 12 --vocab 32000\n"
     "smoe synth gpt-oss-120b synth-records/ --layers 4 --dry-run\n"
     "smoe synth Qwen3-30B-A3B/config.json synth.smoe --bits 2",
     DefineSynth},
    {"verify", kConvert, "Check a model's structure and every checksum", "smoe verify model.smoe",
     DefineVerify},
    {"stripe", kConvert, "Spread a model's experts over several drives, which then read together",
     "smoe stripe qwen3-30b.smoe qwen3-30b.stripe /mnt/b /mnt/c\n"
     "smoe stripe qwen3-30b.smoe qwen3-30b.stripe /mnt/b --weights 1,2",
     DefineStripe},
    {"upgrade", kConvert, "Turn a version 1 vault into version 2, in place",
     "smoe upgrade old.smoe --config Qwen3-30B-A3B/", DefineUpgrade},
    {"recover", kConvert, "Rebuild a vault's lost header from its checkpoint",
     "smoe recover broken.smoe --checkpoint Qwen3-30B-A3B/", DefineRecover},
    {"extract-trunk", kConvert, "Write a vault's trunk as a safetensors file",
     "smoe extract-trunk model.smoe trunk.safetensors", DefineExtractTrunk},
    {"inspect", kMeasure, "Show what a model file holds and what was decided about it",
     "smoe inspect model.smoe\nsmoe inspect model.smoe --json --experts", DefineInspect},
    {"logits", kMeasure, "Write the logits at every position of a prompt",
     "smoe logits model.smoe --tokens 1,2,3 --out logits.safetensors --router", DefineLogits},
    {"perplexity", kMeasure, "Measure how well a model predicts a text",
     "smoe perplexity model.smoe --text book.txt", DefinePerplexity},
    {"compare", kMeasure, "Measure how far two forms of one model are apart",
     "smoe compare Qwen3-30B-A3B/ qwen3-30b.smoe --text book.txt\n"
     "smoe compare q4.smoe q2.smoe --json",
     DefineCompare},
    {"plan", kMeasure, "Show how memory would be divided, and how fast a model could be",
     "smoe plan qwen3-30b-a3b --memory 8GiB --drive-rate 3.5\n"
     "smoe plan qwen3-30b.smoe --memory 8GiB --context 16384",
     DefinePlan},
    {"trace", kMeasure, "Record which experts the routers choose for a text",
     "smoe trace model.smoe --text book.txt --out book.trace\n"
     "smoe trace synth.smoe --random 2000 --out random.trace",
     DefineTrace},
    {"replay", kMeasure, "Show what caches of several sizes would read for a trace",
     "smoe replay book.trace\nsmoe replay book.trace --slots 200,400 --skip 500", DefineReplay},
    {"bench", kMeasure, "Measure speed beside the memory that bounds it",
     "smoe bench model.smoe\n"
     "smoe bench model.smoe --prompt 2048 --tokens 128 --threads 1,2 --profile\n"
     "smoe bench --drive model.smoe\n"
     "smoe bench model.smoe --log measurements.tsv --json",
     DefineBench},
    {"doctor", kMeasure, "Look at this machine, its drive and a model, and say what to change",
     "smoe doctor\nsmoe doctor model.smoe --numa\nsmoe doctor /mnt/models --json", DefineDoctor},
    {"tokenize", kMeasure, "Turn text into token ids", "smoe tokenize model.smoe \"Hello there\"",
     DefineTokenize},
    {"detokenize", kMeasure, "Turn token ids into text",
     "smoe detokenize model.smoe 1000,517\n"
     "smoe tokenize model.smoe \"Hello\" --json | smoe detokenize model.smoe",
     DefineDetokenize},
    {"template", kMeasure, "Show the prompt that the chat template makes",
     "smoe template model.smoe --chat \"Hello\" --system \"Be brief.\"\n"
     "smoe template model.smoe --messages conversation.json",
     DefineTemplate},
    {"version", kProgram, "Show the version, kernels and licences", "smoe version --licenses",
     DefineVersion},
    {"completions", kProgram, "Write a completion script for bash, zsh or fish",
     "smoe completions bash > /etc/bash_completion.d/smoe", DefineCompletions},
    {"man", kProgram, "Write the manual page", "smoe man | man -l -", DefineMan},
};

}  // namespace

std::span<const Command> AllCommands() { return kCommands; }

}  // namespace smoe::cli
