// text/rust_abi.h: the C functions of rust/text (rust/text/src/lib.rs). Only the .cc files of this
// folder include it.
//
// Functions that can fail return 0, or a code with a text in *error that smoe_bytes_free frees.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct SmoeBytes {  // the crate's memory
  uint8_t* data;
  size_t len;
};
struct SmoeIds {
  uint32_t* data;
  size_t len;
};
struct SmoeOffsets {
  size_t* data;
  size_t len;
};
struct SmoeText {  // the caller's memory, borrowed for the call
  const uint8_t* data;
  size_t len;
};

// The values of fail.rs.
enum SmoeCode : int {
  kSmoeOk = 0,
  kSmoeInvalid = 1,
  kSmoeCorrupt = 2,
  kSmoeUnsupported = 3,
  kSmoePanic = 4,
  kSmoeExhausted = 5,
};

struct SmoeTokenizer;
struct SmoeStream;
struct SmoeTemplate;

int smoe_tokenizer_load(SmoeText json, SmoeTokenizer** out, SmoeBytes* error);
int smoe_tokenizer_encode(const SmoeTokenizer* tokenizer, SmoeText text, bool add_special,
                          int parse, SmoeIds* out, SmoeBytes* error);
int smoe_tokenizer_encode_broken(const SmoeTokenizer* tokenizer, SmoeText text,
                                 const size_t* breaks, size_t break_count, bool add_special,
                                 SmoeIds* out, SmoeBytes* error);
int smoe_tokenizer_breaks(const SmoeTokenizer* tokenizer, SmoeText text, SmoeOffsets* out,
                          SmoeBytes* error);
int smoe_tokenizer_decode(const SmoeTokenizer* tokenizer, const uint32_t* ids, size_t id_count,
                          bool skip_special, SmoeBytes* out, SmoeBytes* error);
uint32_t smoe_tokenizer_vocab_size(const SmoeTokenizer* tokenizer);
int smoe_tokenizer_token_text(const SmoeTokenizer* tokenizer, uint32_t id, SmoeBytes* out,
                              SmoeBytes* error);
bool smoe_tokenizer_is_special(const SmoeTokenizer* tokenizer, uint32_t id);
int smoe_tokenizer_token_id(const SmoeTokenizer* tokenizer, SmoeText text, uint32_t* id,
                            bool* found, SmoeBytes* error);
int smoe_tokenizer_prefix(const SmoeTokenizer* tokenizer, SmoeIds* out, SmoeBytes* error);

SmoeStream* smoe_stream_new(const SmoeTokenizer* tokenizer, bool skip_special);
int smoe_stream_push(SmoeStream* stream, uint32_t id, SmoeBytes* out, SmoeBytes* error);
int smoe_stream_finish(SmoeStream* stream, SmoeBytes* out, SmoeBytes* error);

int smoe_template_new(SmoeText source, SmoeText globals, SmoeTemplate** out, SmoeBytes* error);
bool smoe_template_wants_text(const SmoeTemplate* chat_template);
int smoe_template_render(const SmoeTemplate* chat_template, const SmoeTokenizer* tokenizer,
                         SmoeText request, const int64_t* now, SmoeBytes* text, SmoeOffsets* breaks,
                         bool* differs, SmoeBytes* error);

void smoe_tokenizer_free(SmoeTokenizer* tokenizer);
void smoe_stream_free(SmoeStream* stream);
void smoe_template_free(SmoeTemplate* chat_template);
void smoe_bytes_free(SmoeBytes bytes);
void smoe_ids_free(SmoeIds ids);
void smoe_offsets_free(SmoeOffsets offsets);

int smoe_test_panic(SmoeBytes* error);

}  // extern "C"
