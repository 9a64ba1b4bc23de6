// peer_bench MODEL.gguf MODE SEED RUN...
//
// Times libllama on random tokens and prints one JSON object. One process loads once and does
// several runs, so that rounds of two programs can alternate quickly.
//
//   MODE  mapped    weights mapped from the file, as they are
//         repacked  private memory, experts in the layout its AVX kernels like best; no AMX
//         default   private memory, whatever layouts the build has: AMX too where it was built in
//   RUN   THREADS:PROMPT:DECODE, each on an empty context. A leading '-' warms up: not printed.
//
// Speeds are of wall time; bytes and faults are of this process.
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "ggml-backend.h"
#include "gguf.h"
#include "llama.h"

#define TOKENS_MAX 8192

typedef struct {
  double seconds;
  double cpu_seconds;
  long read_bytes;
  long faults;
} Mark;

static Mark Now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  Mark mark = {(double)time.tv_sec + 1e-9 * (double)time.tv_nsec,
               (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec),
               0, usage.ru_majflt};
  char line[128];
  FILE* io = fopen("/proc/self/io", "r");
  while (io && fgets(line, sizeof line, io)) sscanf(line, "read_bytes: %ld", &mark.read_bytes);
  if (io) fclose(io);
  return mark;
}

static void Die(const char* what, const char* which) {
  fprintf(stderr, "peer_bench: %s: %s\n", what, which);
  exit(1);
}

static void Log(enum ggml_log_level level, const char* text, void* user) {
  (void)user;
  if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) fputs(text, stderr);
}

static uint32_t Setting(const struct gguf_context* file, const char* key) {
  const int64_t id = gguf_find_key(file, key);
  if (id < 0) Die("no such key in the model", key);
  return gguf_get_val_u32(file, id);
}

// Bytes of all weights that one decoded token reads: the trunk without the embedding, and top_k of
// the experts. Also finds the type of the experts.
static double ActiveBytes(const char* path, enum ggml_type* expert_type) {
  struct gguf_init_params params = {true, NULL};
  struct gguf_context* file = gguf_init_from_file(path, params);
  if (!file) Die("not a GGUF file", path);
  const double used = (double)Setting(file, "qwen3moe.expert_used_count") /
                      (double)Setting(file, "qwen3moe.expert_count");
  double bytes = 0;
  for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
    const char* name = gguf_get_tensor_name(file, i);
    const double size = (double)gguf_get_tensor_size(file, i);
    const bool expert = strstr(name, "_exps.") != NULL;
    if (expert && strstr(name, ".weight")) *expert_type = gguf_get_tensor_type(file, i);
    if (strcmp(name, "token_embd.weight") != 0) bytes += expert ? size * used : size;
  }
  gguf_free(file);
  return bytes;
}

static ggml_backend_buffer_type_t RepackBuffers(void) {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_dev_get_extra_bufts_t get =
      (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
  for (ggml_backend_buffer_type_t* type = get ? get(cpu) : NULL; type && *type; ++type) {
    if (strcmp(ggml_backend_buft_name(*type), "CPU_REPACK") == 0) return *type;
  }
  Die("this build has no such buffers", "CPU_REPACK");
  return NULL;
}

static struct llama_model* Load(const char* path, const char* mode, enum ggml_type expert_type) {
  struct llama_model_params params = llama_model_default_params();
  struct llama_model_tensor_buft_override overrides[2] = {{NULL, NULL}, {NULL, NULL}};
  const bool mapped = strcmp(mode, "mapped") == 0;
  params.load_mode = mapped ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
  params.use_extra_bufts = strcmp(mode, "default") == 0;
  if (strcmp(mode, "repacked") == 0) {
    // Of the types we write its x86 kernels have such a layout for Q4_0 only; NVFP4 stays as it is.
    if (expert_type == GGML_TYPE_Q4_0) {
      overrides[0].pattern = "_exps\\.weight";
      overrides[0].buft = RepackBuffers();
    }
    params.tensor_buft_overrides = overrides;
  } else if (!mapped && !params.use_extra_bufts) {
    Die("MODE is not mapped, repacked or default", mode);
  }
  struct llama_model* model = llama_model_load_from_file(path, params);
  if (!model) Die("cannot load", path);
  return model;
}

static void Decode(struct llama_context* context, llama_token* tokens, int count) {
  if (llama_decode(context, llama_batch_get_one(tokens, count))) Die("llama_decode", "failed");
  llama_synchronize(context);
}

static void FillRandom(llama_token* tokens, int count, int vocab) {
  for (int i = 0; i < count; ++i) tokens[i] = (llama_token)(rand() % vocab);
}

static void PrintPhase(const char* name, const Mark* from, const Mark* to, int tokens) {
  const double seconds = to->seconds - from->seconds;
  printf(", \"%s\": {\"tokens\": %d, \"seconds\": %.6f, \"tokens_per_second\": %.4f", name, tokens,
         seconds, tokens / seconds);
  printf(", \"read_bytes\": %ld, \"major_faults\": %ld, \"cpu_seconds\": %.3f}",
         to->read_bytes - from->read_bytes, to->faults - from->faults,
         to->cpu_seconds - from->cpu_seconds);
}

// One RUN; returns whether it printed.
static bool Run(struct llama_context* context, const char* run, int vocab, bool first) {
  static llama_token tokens[TOKENS_MAX];
  const bool warm = *run == '-';
  int threads, prompt, decode;
  if (sscanf(run + warm, "%d:%d:%d", &threads, &prompt, &decode) != 3 || threads < 1 ||
      prompt < 1 || decode < 0 || prompt + decode > TOKENS_MAX) {
    Die("RUN is not THREADS:PROMPT:DECODE", run);
  }
  llama_memory_clear(llama_get_memory(context), true);
  llama_set_n_threads(context, threads, threads);
  FillRandom(tokens, prompt + decode, vocab);
  const Mark start = Now();
  Decode(context, tokens, prompt);
  const Mark middle = Now();
  for (int i = 0; i < decode; ++i) Decode(context, tokens + prompt + i, 1);
  const Mark end = Now();
  if (warm) return false;
  printf("%s{\"threads\": %d", first ? "" : ", ", threads);
  PrintPhase("prefill", &start, &middle, prompt);
  if (decode > 0) PrintPhase("decode", &middle, &end, decode);
  printf("}");
  return true;
}

int main(int argc, char** argv) {
  if (argc < 5) Die("usage", "peer_bench MODEL.gguf mapped|repacked|default SEED RUN...");
  srand((unsigned)atoi(argv[3]));
  llama_log_set(Log, NULL);
  llama_backend_init();
  enum ggml_type expert_type = GGML_TYPE_COUNT;
  const double active_bytes = ActiveBytes(argv[1], &expert_type);
  const Mark before = Now();
  struct llama_model* model = Load(argv[1], argv[2], expert_type);
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = TOKENS_MAX / 8;
  params.n_batch = params.n_ubatch = 512;
  struct llama_context* context = llama_init_from_model(model, params);
  if (!context) Die("cannot make a context for", argv[1]);
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const Mark loaded = Now();
  printf("{\"mode\": \"%s\", \"experts\": \"%s\", \"system\": \"%s\"", argv[2],
         ggml_type_name(expert_type), llama_print_system_info());
  printf(", \"weight_bytes_per_token\": %.0f, \"load_seconds\": %.3f", active_bytes,
         loaded.seconds - before.seconds);
  printf(", \"load_read_bytes\": %ld, \"runs\": [", loaded.read_bytes - before.read_bytes);
  bool first = true;
  for (int i = 4; i < argc; ++i) {
    if (Run(context, argv[i], vocab, first)) first = false;
  }
  printf("]}\n");
  llama_free(context);
  llama_model_free(model);
  return 0;
}
