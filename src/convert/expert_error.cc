#include "convert/expert_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/memory.h"
#include "convert/workers.h"
#include "store/read_expert.h"
#include "tensor/dequantise.h"

namespace smoe::convert {
namespace {

using store::ExpertId;
using store::ExpertStore;
using store::StoreLayer;

// What one worker needs: a slot of each store and a matrix of each.
class ExpertComparer {
 public:
  static Result<ExpertComparer> Create(const ExpertStore& a, const ExpertStore& b) {
    ExpertComparer comparer(a, b);
    SMOE_TRY_ASSIGN(comparer.slot_a_, AlignedBuffer::Create(a.slot_bytes(), "expert of A"));
    SMOE_TRY_ASSIGN(comparer.slot_b_, AlignedBuffer::Create(b.slot_bytes(), "expert of B"));
    const uint64_t weight_bytes = sizeof(float) * a.intermediate_size();
    for (AlignedBuffer* matrix : {&comparer.matrix_a_, &comparer.matrix_b_}) {
      SMOE_TRY_ASSIGN(*matrix, AlignedBuffer::CreateTable(a.hidden_size(), weight_bytes, 1,
                                                          "matrix of an expert"));
    }
    return comparer;
  }

  Status Run(ExpertId id, ProjErrors* errors) {
    SMOE_TRY(store::ReadExpert(a_, id, slot_a_.bytes()));
    SMOE_TRY(store::ReadExpert(b_, id, slot_b_.bytes()));
    const tensor::ExpertWeights a = a_.View(id, slot_a_.bytes());
    const tensor::ExpertWeights b = b_.View(id, slot_b_.bytes());
    (*errors)[0] = Compare(a.gate, b.gate);
    (*errors)[1] = Compare(a.up, b.up);
    (*errors)[2] = Compare(a.down, b.down);
    return Ok();
  }

 private:
  ExpertComparer(const ExpertStore& a, const ExpertStore& b) : a_(a), b_(b) {}

  tensor::QuantisationError Compare(const tensor::WeightView& a, const tensor::WeightView& b) {
    const uint64_t count = uint64_t{a.rows} * a.cols;
    const std::span<float> of_a = matrix_a_.As<float>().first(count);
    const std::span<float> of_b = matrix_b_.As<float>().first(count);
    tensor::Dequantise(a, of_a);
    tensor::Dequantise(b, of_b);
    return MatrixError(of_a, of_b);
  }

  const ExpertStore& a_;
  const ExpertStore& b_;
  AlignedBuffer slot_a_;
  AlignedBuffer slot_b_;
  AlignedBuffer matrix_a_;
  AlignedBuffer matrix_b_;
};

}  // namespace

Status CheckSameShape(const ExpertStore& a, const ExpertStore& b) {
  const auto differ = [&](const std::string& field, uint64_t in_a, uint64_t in_b) {
    return Invalid("{}: {} is {}, {} has {}: two models?", a.path(), field, in_a, b.path(), in_b);
  };
  if (a.hidden_size() != b.hidden_size()) {
    return differ("hidden_size", a.hidden_size(), b.hidden_size());
  }
  if (a.intermediate_size() != b.intermediate_size()) {
    return differ("width of an expert", a.intermediate_size(), b.intermediate_size());
  }
  if (a.layers().size() != b.layers().size()) {
    return differ("number of layers with experts", a.layers().size(), b.layers().size());
  }
  for (size_t i = 0; i < a.layers().size(); ++i) {
    const StoreLayer& of_a = a.layers()[i];
    const StoreLayer& of_b = b.layers()[i];
    if (of_a.layer_index != of_b.layer_index) {
      return differ(fmt::format("layer of expert layer {}", i), of_a.layer_index, of_b.layer_index);
    }
    if (of_a.expert_count != of_b.expert_count) {
      return differ(fmt::format("number of experts in layer {}", of_a.layer_index),
                    of_a.expert_count, of_b.expert_count);
    }
  }
  return Ok();
}

std::vector<LayerErrors> SumByLayer(const std::vector<ExpertId>& ids,
                                    const std::vector<ProjErrors>& errors) {
  std::vector<LayerErrors> layers;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (layers.empty() || layers.back().layer_index != ids[i].layer_index) {
      layers.push_back({ids[i].layer_index, {}});
    }
    for (size_t p = 0; p < errors[i].size(); ++p) layers.back().projs[p].Add(errors[i][p]);
  }
  return layers;
}

tensor::QuantisationError LayerErrors::Sum() const {
  tensor::QuantisationError sum;
  for (const tensor::QuantisationError& error : projs) sum.Add(error);
  return sum;
}

tensor::QuantisationError MatrixError(std::span<const float> a, std::span<const float> b) {
  SMOE_CHECK(a.size() == b.size());
  tensor::QuantisationError error;
  error.weight_count = a.size();
  for (size_t i = 0; i < a.size(); ++i) {
    const double value = double{a[i]};
    const double distance = double{b[i]} - value;
    error.squared_error += distance * distance;
    error.squared_value += value * value;
    error.error_max = std::max(error.error_max, std::fabs(distance));
  }
  return error;
}

Result<std::vector<LayerErrors>> CompareExperts(const store::ExpertStore& a,
                                                const store::ExpertStore& b, uint32_t thread_count,
                                                Progress& progress) {
  SMOE_TRY(CheckSameShape(a, b));
  const std::vector<ExpertId> ids = store::AllExperts(a);
  uint64_t total_bytes = 0;
  for (const ExpertId id : ids) {
    total_bytes += a.Locate(id).read_bytes() + b.Locate(id).read_bytes();
  }
  const ProgressPhase phase(progress, "experts", total_bytes);
  std::vector<ProjErrors> errors(ids.size());
  Status compared = RunWorkers(
      ids.size(), thread_count, [&] { return ExpertComparer::Create(a, b); },
      [&](size_t index, ExpertComparer& comparer) -> Status {
        SMOE_TRY(comparer.Run(ids[index], &errors[index]));
        progress.Advance(a.Locate(ids[index]).read_bytes() + b.Locate(ids[index]).read_bytes());
        return Ok();
      });
  SMOE_TRY(std::move(compared));
  return SumByLayer(ids, errors);
}

}  // namespace smoe::convert
