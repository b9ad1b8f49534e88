// A small sealed state of any options, for tests of what is done to its bytes.
#pragma once

#include <memory>
#include <vector>

#include "common/kv/codec.h"
#include "common/kv/state.h"
#include "tests/kv/reference_case.h"

namespace akv::kv::testing {

struct SealedState {
  GoldenCase inputs;
  std::unique_ptr<kernels::RopeTable> rope;
  StatePlan plan;
  StateIdentity identity;
  StateBuffer buffer;
  uint64_t checksum = 0;
  Status status;
};

// Compresses `layers` times the same inputs. codec none gives a dense state.
inline SealedState seal_state(const CaseSpec& spec, int layers, const PlanRequest& request,
                              const Parallel& parallel = serial()) {
  SealedState s;
  s.inputs = make_inputs(spec);
  s.rope = std::make_unique<kernels::RopeTable>(s.inputs.rope, spec.tokens + 64);
  KvShape shape = s.inputs.shape();
  shape.layers = layers;
  s.plan = *plan_state(shape, spec.tokens, request);
  s.identity.model_fingerprint.fill(7);
  s.identity.prompt_hash = 99;
  s.buffer = *StateBuffer::create(s.plan);
  s.checksum = write_header(s.plan, s.identity, s.buffer.header(s.plan));
  Workspace workspace;
  for (int l = 0; l < layers && s.status.ok(); ++l) {
    const LayerInput input{l, s.inputs.k.data(), s.inputs.v.data(), s.inputs.q.data(),
                           s.rope.get()};
    s.status =
        compress_layer(input, s.plan, s.checksum, s.buffer.record(s.plan, l), workspace, parallel);
  }
  return s;
}

}  // namespace akv::kv::testing
