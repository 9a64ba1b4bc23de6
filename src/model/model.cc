#include "model/model.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "base/stopwatch.h"
#include "model/arch/arch_traits.h"
#include "model/expert_guess.h"
#include "model/forward.h"
#include "model/matrix_rows.h"
#include "tensor/finite.h"

namespace smoe::model {

namespace {

// What the config asks for and this build does not compute, by name.
Status CheckConfig(const store::ModelFiles& files, const ArchTraits* traits) {
  const checkpoint::ModelConfig& config = files.config;
  if (traits == nullptr) {
    return Unsupported("{}: model_type {} is not one that this build runs ({})", files.path,
                       config.model_type, ArchNames());
  }
  if (config.hidden_act != "silu") {
    return Unsupported("{}: hidden_act {}, this build computes silu", files.path,
                       config.hidden_act);
  }
  if (config.scoring != checkpoint::ScoringFunction::kSoftmax) {
    return Unsupported("{}: scoring_func sigmoid, this build routes by softmax for {}", files.path,
                       config.model_type);
  }
  if (config.n_group > 1 || config.topk_group > 1) {
    return Unsupported("{}: n_group {} and topk_group {}, this build routes over one group",
                       files.path, config.n_group, config.topk_group);
  }
  if (config.clip_qkv > 0 && !traits->clips_qkv) {
    return Unsupported("{}: clip_qkv {}, which {} does not define", files.path, config.clip_qkv,
                       config.model_type);
  }
  if (config.num_key_value_heads == 0 ||
      config.num_attention_heads % config.num_key_value_heads != 0) {
    return Invalid("{}: num_attention_heads {} is no multiple of num_key_value_heads {}",
                   files.path, config.num_attention_heads, config.num_key_value_heads);
  }
  return Ok();
}

// The store must have exactly the experts that the router can name.
Status CheckExperts(const store::ModelFiles& files) {
  const checkpoint::ModelConfig& config = files.config;
  for (uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto& layers = files.experts->layers();
    const auto found = std::find_if(layers.begin(), layers.end(), [&](const auto& candidate) {
      return candidate.layer_index == layer;
    });
    if (!files.facts.layer_is_sparse[layer]) continue;
    if (found == layers.end()) {
      return Corrupt("{}: layer {} routes to experts, {} has none for it", files.path, layer,
                     files.experts->path());
    }
    if (found->expert_count != config.num_experts) {
      return Corrupt("{}: layer {}: {} experts expected from config.json, {} in {}", files.path,
                     layer, config.num_experts, found->expert_count, files.experts->path());
    }
    if (files.experts->hidden_size() != config.hidden_size) {
      return Corrupt("{}: hidden_size {} expected from config.json, {} in {}", files.path,
                     config.hidden_size, files.experts->hidden_size(), files.experts->path());
    }
    if (config.num_experts_per_tok == 0 || config.num_experts_per_tok > config.num_experts) {
      return Invalid("{}: num_experts_per_tok {}, expected 1 to num_experts {}", files.path,
                     config.num_experts_per_tok, config.num_experts);
    }
  }
  return Ok();
}

ScratchShape ShapeOf(const checkpoint::ModelConfig& config, const Rope& rope,
                     const Model::Options& options) {
  ScratchShape shape;
  shape.row_count_max = options.row_count_max;
  shape.logit_row_max = options.logit_row_max;
  shape.layer_count = config.num_hidden_layers;
  shape.hidden_size = config.hidden_size;
  shape.q_width = config.num_attention_heads * config.head_dim;
  shape.kv_width = config.num_key_value_heads * config.head_dim;
  shape.attention_heads = config.num_attention_heads;
  shape.part_count_max = options.attention_part_max;
  shape.rotary_dim = rope.rotary_dim();
  shape.expert_count = config.num_experts;
  shape.top_k = config.num_experts_per_tok;
  shape.vocab_size = config.vocab_size;
  if (options.arithmetic == experts::Arithmetic::kInt8) {
    shape.quantised_width = std::max(shape.hidden_size, shape.q_width);
  }
  return shape;
}

// Memory for the widest dense network or shared expert.
Result<kernels::FeedForward> MakeFeedForward(const Trunk& trunk, const Model::Options& options,
                                             ThreadPool& pool,
                                             const kernels::KernelTable& kernels) {
  kernels::FeedForward::Options sizes;
  sizes.token_count_max = options.row_count_max;
  sizes.quantise = options.arithmetic == experts::Arithmetic::kInt8;
  for (const LayerWeights& layer : trunk.layers) {
    sizes.intermediate_size_max = std::max(sizes.intermediate_size_max, layer.dense.gate.rows);
  }
  return kernels::FeedForward::Create(kernels, pool, sizes);
}

class ModelImpl final : public Model {
 public:
  ModelImpl(const checkpoint::ModelConfig& config, const ArchTraits& traits, Rope rope,
            std::unique_ptr<Trunk> trunk, Scratch scratch, kernels::FeedForward feed_forward,
            ThreadPool& pool, const kernels::KernelTable& kernels, experts::ExpertBackend& backend,
            const Options& options)
      : config_(config),
        traits_(traits),
        rope_(std::move(rope)),
        trunk_(std::move(trunk)),
        scratch_(std::move(scratch)),
        feed_forward_(std::move(feed_forward)),
        pool_(pool),
        kernels_(kernels),
        backend_(backend),
        options_(options) {
    router_rule_.expert_count = config_.num_experts;
    router_rule_.top_k = config_.num_experts_per_tok;
    router_rule_.renormalise =
        traits_.renormalise == Renormalise::kAlways || config_.norm_topk_prob;
    router_rule_.scale = static_cast<float>(config_.routed_scaling_factor);
  }

  const checkpoint::ModelConfig& config() const override { return config_; }
  KvShape kv_shape() const override {
    return {.layer_count = config_.num_hidden_layers,
            .kv_width = config_.num_key_value_heads * config_.head_dim,
            .key_value_heads = config_.num_key_value_heads};
  }
  const TrunkReport& trunk_report() const override { return trunk_->report; }
  Bytes trunk_memory() const override { return trunk_->memory.bytes(); }
  RowCost row_cost() const override { return CostOfRow(*trunk_); }
  const StepProfile& profile() const override { return profile_; }
  void OnLayer(LayerSink sink) override { on_layer_ = std::move(sink); }
  void StopWhen(StopQuestion question) override { stop_question_ = std::move(question); }

  void ForgetActivations() override {
    scratch_.memory.Discard(0, scratch_.memory.size());
    scratch_.quantised.Discard();
    feed_forward_.Discard();
    backend_.ForgetActivations();
  }
  Result<StepResult> Step(std::span<const SequenceRows> sequences, StepTaps* taps) override;

 private:
  Status PlaceRows(std::span<const SequenceRows> sequences);
  void Embed(const Forward& forward);
  Status RunLayer(const Forward& forward, uint32_t layer_index, StepTaps::Layer* tap);
  SparseLayer NextSparse(uint32_t layer_index, size_t row_count) const;
  void RunHead(const Forward& forward, StepTaps* taps);

  const checkpoint::ModelConfig config_;
  const ArchTraits& traits_;
  const Rope rope_;
  const std::unique_ptr<Trunk> trunk_;
  RouterRule router_rule_;
  Scratch scratch_;
  kernels::FeedForward feed_forward_;
  ThreadPool& pool_;
  const kernels::KernelTable& kernels_;
  experts::ExpertBackend& backend_;
  const Options options_;
  LayerSink on_layer_;
  StopQuestion stop_question_;
  StepProfile profile_;
};

// Lays the rows of all sequences one after another and makes room in their caches.
Status ModelImpl::PlaceRows(std::span<const SequenceRows> sequences) {
  scratch_.rows.clear();
  scratch_.logit_rows.clear();
  SMOE_CHECK(sequences.size() <= options_.row_count_max);
  scratch_.is_failed.assign(sequences.size(), 0);
  for (uint32_t index = 0; index < sequences.size(); ++index) {
    const SequenceRows& sequence = sequences[index];
    const size_t first = sequence.kv->token_count();
    SMOE_CHECK(sequence.tokens.size() <= options_.row_count_max - scratch_.rows.size());
    SMOE_TRY(sequence.kv->Reserve(first + sequence.tokens.size()));
    for (size_t i = 0; i < sequence.tokens.size(); ++i) {
      SMOE_CHECK(sequence.tokens[i] < config_.vocab_size);
      const bool is_last = i + 1 == sequence.tokens.size();
      if (sequence.logits == SequenceRows::Logits::kAll ||
          (sequence.logits == SequenceRows::Logits::kLast && is_last)) {
        SMOE_CHECK(scratch_.logit_rows.size() < options_.logit_row_max);
        scratch_.logit_rows.push_back(scratch_.rows.size());
      }
      scratch_.rows.push_back({index, sequence.tokens[i], first + i});
    }
  }
  return Ok();
}

void ModelImpl::Embed(const Forward& forward) {
  const size_t hidden = config_.hidden_size;
  const size_t half = rope_.rotary_dim() / 2;
  if (trunk_->embedding_rows) {
    trunk_->embedding_rows->Read(scratch_.rows, scratch_.hidden, [&](size_t row, Error error) {
      forward.Fail(scratch_.rows[row].sequence, std::move(error).While("embedding"));
    });
  }
  const auto body = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      if (!trunk_->embedding_rows) {
        DecodeRow(trunk_->embedding, scratch_.rows[row].token,
                  {scratch_.hidden + row * hidden, hidden});
      }
      rope_.FillRow(scratch_.rows[row].position, scratch_.cosines + row * half,
                    scratch_.sines + row * half);
    }
  };
  pool_.ParallelFor(scratch_.rows.size(), 1, std::ref(body));
}

// The layer whose experts are guessed while those of `layer_index` are computed. Many rows together
// want nearly all that is named, whatever dense layers in between add. Few are asked again behind
// such a layer, which is then early enough and says more.
SparseLayer ModelImpl::NextSparse(uint32_t layer_index, size_t row_count) const {
  for (uint32_t next = layer_index + 1; next < trunk_->layers.size(); ++next) {
    if (trunk_->layers[next].is_sparse) return {&trunk_->layers[next], next};
    if (row_count <= experts::kGuessRowsMax) break;
  }
  return {};
}

Status ModelImpl::RunLayer(const Forward& forward, uint32_t layer_index, StepTaps::Layer* tap) {
  const LayerWeights& layer = trunk_->layers[layer_index];
  scratch_.layer_index = layer_index;
  NormRows(forward, scratch_.hidden, layer.input_norm, scratch_.normed);
  RunAttention(forward, layer, layer_index);
  KeepAttention(forward, layer_index);
  AddBranch(forward);
  NormRows(forward, scratch_.hidden, layer.post_norm, scratch_.normed);
  const size_t row_count = forward.row_count();
  const bool is_last = layer_index + 1 == trunk_->layers.size();
  const LayerWeights* const next = is_last ? nullptr : &trunk_->layers[layer_index + 1];
  if (layer.is_sparse) {
    SMOE_TRY(RunExperts(forward, layer, layer_index, NextSparse(layer_index, row_count), tap));
  } else {
    const Timed timed(profile_.of(Phase::kDense));
    RunDense(forward, layer.dense, scratch_.branch);
  }
  AddBranch(forward);
  CheckHidden(forward, layer_index);
  if (next != nullptr && next->is_sparse && row_count <= experts::kGuessRowsMax &&
      backend_.WantsLikely(row_count)) {
    ForeseeExperts(forward, *next, layer_index + 1);
  }
  return Ok();
}

// Final norm and head for the rows whose logits are wanted.
void ModelImpl::RunHead(const Forward& forward, StepTaps* taps) {
  const size_t hidden = config_.hidden_size;
  const size_t vocab = config_.vocab_size;
  const size_t row_count = forward.row_count();
  if (taps != nullptr && taps->want_hidden) {
    NormRows(forward, scratch_.hidden, trunk_->final_norm, scratch_.normed);
    taps->hidden_norm.assign(scratch_.normed, scratch_.normed + row_count * hidden);
  }
  const std::vector<size_t>& wanted = scratch_.logit_rows;
  for (size_t i = 0; i < wanted.size(); ++i) {
    kernels_.rms_norm(scratch_.hidden + wanted[i] * hidden, trunk_->final_norm.data(),
                      forward.eps(), hidden, scratch_.head_in + i * hidden);
  }
  if (wanted.empty()) return;
  const Timed timed(profile_.of(Phase::kHead));
  ProjectHead(forward, {scratch_.head_in, wanted.size(), hidden},
              {&trunk_->head, {}, scratch_.logits});
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!forward.RowIsLive(wanted[i]) || tensor::AllFinite({scratch_.logits + i * vocab, vocab}))
      continue;
    const StepRow& row = scratch_.rows[wanted[i]];
    forward.Fail(row.sequence,
                 Error(ErrorCode::kCorrupt,
                       fmt::format("output head: a logit of position {} is NaN or infinite, finite "
                                   "numbers expected; the layers before it were finite",
                                   row.position)));
  }
}

Result<StepResult> ModelImpl::Step(std::span<const SequenceRows> sequences, StepTaps* taps) {
  const Timed timed(&profile_.total_ns);
  StepResult result;
  SMOE_TRY(PlaceRows(sequences));
  result.logits = {scratch_.logits, scratch_.logit_rows.size() * config_.vocab_size};
  const Forward forward{config_,       traits_,  rope_,    router_rule_, pool_,           kernels_,
                        feed_forward_, backend_, scratch_, sequences,    result.failures, profile_};
  Embed(forward);
  const bool want_hidden = taps != nullptr && taps->want_hidden;
  const bool want_router = taps != nullptr && taps->want_router;
  const size_t hidden_count = forward.row_count() * config_.hidden_size;
  if (want_hidden || want_router) taps->layers.assign(config_.num_hidden_layers, {});
  if (want_hidden) taps->hidden_embed.assign(scratch_.hidden, scratch_.hidden + hidden_count);
  const auto first = std::ranges::find_if(trunk_->layers, &LayerWeights::is_sparse);
  if (first != trunk_->layers.end() && backend_.WantsFirst(forward.row_count())) {
    ForeseeExperts(forward, *first, static_cast<uint32_t>(first - trunk_->layers.begin()));
  }
  for (uint32_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    SMOE_TRY(RunLayer(forward, layer, want_router ? &taps->layers[layer] : nullptr));
    if (want_hidden) {
      taps->layers[layer].hidden.assign(scratch_.hidden, scratch_.hidden + hidden_count);
    }
    if (on_layer_) on_layer_(layer + 1, config_.num_hidden_layers);
    if (!sequences.empty() && result.failures.size() == sequences.size()) return result;
    result.is_stopped = stop_question_ && stop_question_();
    if (result.is_stopped) return result;
  }
  RunHead(forward, taps);
  for (const SequenceRows& sequence : sequences) {
    sequence.kv->SetTokenCount(sequence.kv->token_count() + sequence.tokens.size());
  }
  return result;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const store::ModelFiles& files, ThreadPool& pool,
                                           const kernels::KernelTable& kernels,
                                           experts::ExpertBackend& backend,
                                           const Options& options) {
  const ArchTraits* const traits = FindArch(files.config.family);
  SMOE_TRY(CheckConfig(files, traits));
  SMOE_TRY_ASSIGN(Rope rope, Rope::Create(files.config.rope, files.config.head_dim));
  SMOE_TRY_ASSIGN(std::unique_ptr<Trunk> trunk, LoadTrunk(files, *traits, options.trunk, pool));
  SMOE_TRY(CheckExperts(files));
  SMOE_TRY_ASSIGN(Scratch scratch, Scratch::Create(ShapeOf(files.config, rope, options)));
  SMOE_TRY_ASSIGN(kernels::FeedForward feed_forward,
                  MakeFeedForward(*trunk, options, pool, kernels));
  return std::unique_ptr<Model>(std::make_unique<ModelImpl>(
      files.config, *traits, std::move(rope), std::move(trunk), std::move(scratch),
      std::move(feed_forward), pool, kernels, backend, options));
}

Result<TrunkSize> Model::MeasureTrunk(const store::ModelFiles& files,
                                      const checkpoint::TrunkFormats& formats) {
  const ArchTraits* const traits = FindArch(files.config.family);
  SMOE_TRY(CheckConfig(files, traits));
  return model::MeasureTrunk(files, *traits, formats);
}

}  // namespace smoe::model
