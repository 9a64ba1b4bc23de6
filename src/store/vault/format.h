// store/vault/format.h: the structs of the `.smoe` file, bit for bit.
//
// Source: docs/formats/vault.md (the format's own document), and the notes on real files there.
// Fields are unaligned in the file: load with LoadStruct, never by a cast.
#pragma once

#include <cstdint>

namespace smoe::store::vault {

inline constexpr uint8_t kMagic[8] = {0x53, 0x4D, 0x4F, 0x45, 0xDE, 0xEA, 0x00, 0x01};
inline constexpr uint32_t kVersion1 = 1;
inline constexpr uint32_t kVersion2 = 2;
inline constexpr uint64_t kBlobAlignment = 16384;
inline constexpr uint64_t kTableOffset = 64;
inline constexpr uint64_t kArchAlignment = 64;
inline constexpr uint32_t kTensorsPerExpert = 3;

#pragma pack(push, 1)

struct SmoeHeader {
  uint8_t magic[8];
  uint32_t version;
  uint32_t num_moe_layers;
  uint32_t max_experts_per_layer;
  uint32_t total_experts;
  uint64_t table_offset;
  uint64_t data_offset;
  uint32_t group_size;
  uint32_t bits;
  uint32_t d_model;
  uint32_t vocab_size;
  uint32_t ffn_dim;
  uint32_t reserved_ext;  // v2: byte offset of the arch block
};
static_assert(sizeof(SmoeHeader) == 64);

struct ExpertEntry {
  uint32_t layer_id;
  uint32_t expert_id;
  uint64_t byte_offset;
  uint64_t raw_size;
  uint64_t padded_size;
  uint32_t group_size;
  uint64_t num_groups;
  uint8_t reserved[4];
};
static_assert(sizeof(ExpertEntry) == 48);

struct TensorDescriptor {
  uint8_t tensor_type;  // 0 gate, 1 up, 2 down
  uint8_t ndim;         // 2
  uint8_t reserved_0[2];
  uint32_t rows;
  uint32_t cols;
  uint64_t packed_offset;  // inside the blob
  uint64_t packed_size;
  uint64_t scales_offset;  // inside the blob
  uint64_t scales_size;
};
static_assert(sizeof(TensorDescriptor) == 44);

inline constexpr uint8_t kArchMagic[4] = {0x53, 0x41, 0x52, 0x43};  // "SARC"
inline constexpr uint32_t kArchVersion = 1;
inline constexpr uint32_t kArchNormTopkProb = 1u << 0;
inline constexpr uint32_t kArchHasQkNorm = 1u << 1;
inline constexpr uint32_t kArchHasDenseLayer0 = 1u << 2;
inline constexpr uint32_t kArchTopKMax = 16;
inline constexpr uint32_t kArchHeadDimMax = 256;

struct SmoeArchBlock {
  uint8_t magic[4];
  uint32_t block_version;
  uint32_t block_size;
  uint32_t flags;
  float rope_theta;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t moe_top_k;
  uint32_t moe_ffn_dim;
  uint32_t dense_ffn_dim;
  uint32_t shared_expert_ffn_dim;
  uint32_t activation;  // 0: SiLU
  uint32_t num_hidden_layers;
  float rms_norm_eps;
  char model_type[24];  // may fill all bytes, without a NUL
  uint8_t reserved[44];
};
static_assert(sizeof(SmoeArchBlock) == 128);

#pragma pack(pop)

// A descriptor as the program uses it: where codes and scales of one projection lie inside a blob.
struct TensorPlace {
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint64_t packed_offset = 0;
  uint64_t packed_size = 0;
  uint64_t scales_offset = 0;
  uint64_t scales_size = 0;
};

}  // namespace smoe::store::vault
