// States for benchmarks: of a real prompt through the prefill engine, or of made-up rows at any
// depth through the codec.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/kv/plan.h"
#include "common/kv/state.h"
#include "common/model/model.h"
#include "kernels/parallel.h"

namespace akv::bench {

struct State {
  kv::StatePlan plan;
  kv::StateBuffer buffer;
  double total_ms = 0;     // forward pass and compression
  double compress_ms = 0;  // of it
  double logits_ms = 0;    // the head on the last position, in addition
};

// The model as a decode node has it after a moment: on huge pages where the system gives them,
// unless `mapped`.
Result<std::shared_ptr<const model::Model>> load_model(const std::string& path, bool mapped);

// Prefills and compresses a prompt of `depth` made-up tokens.
Result<State> prefill(const std::shared_ptr<const model::Model>& model, int64_t depth,
                      const Parallel& parallel);

// A state of the model's shape over clustered random rows, at depths beyond its context too: layer
// 0 goes through the codec, the others are copies of its record. For timing, not for answers.
Result<State> synthetic(const model::Model& model, int64_t depth, const Parallel& parallel);

// A state of its own memory with the same bytes.
Result<kv::StateBuffer> copy_of(const State& state);

}  // namespace akv::bench
