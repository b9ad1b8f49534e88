// One step of fuzzing received states: any bytes, behind any checksum, must be refused or be safe
// to read. Shared by the bounded test and the libFuzzer entry.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "common/base/checksum.h"
#include "kernels/compressed_attention.h"
#include "tests/kv/state_fixture.h"

namespace akv::kv::testing {

// Returns whether the bytes were accepted. Accepted records are rebuilt and attended to, so that a
// sanitizer sees every read that the checks allowed.
inline bool survive_record(const SealedState& s, std::span<std::byte> record, bool reseal) {
  if (reseal && record.size() > 8) {
    const uint64_t sum = xxh3_64(record.subspan(8));
    std::memcpy(record.data(), &sum, 8);
  }
  if (!verify_record(record, 0, s.plan, s.checksum).ok()) return false;
  std::vector<std::byte> state(s.buffer.bytes().begin(), s.buffer.bytes().end());
  std::copy(record.begin(), record.end(), state.begin() + s.plan.record_offset[0]);
  const StateView view = StateView::create(state, s.plan);
  std::vector<float> out(s.inputs.q_new.size());
  kernels::AttentionRow row;
  row.prompt = view.compressed(0);
  row.dense_prompt = view.dense(0);
  row.q = s.inputs.q_new.data();
  row.out = out.data();
  kernels::DecodeAttentionScratch scratch;
  kernels::decode_attention({&row, 1}, s.inputs.heads(), *s.rope, scratch, serial());
  if (!view.is_dense()) {
    std::vector<float> k(s.inputs.k.size()), v(s.inputs.v.size());
    reconstruct_layer(*view.compressed(0), *s.rope, k.data(), v.data());
  }
  return true;
}

inline std::vector<SealedState> fuzz_seeds() {
  std::vector<SealedState> seeds;
  for (const char* profile : {"paper", "pooled", "dense"}) {
    PlanRequest r;
    r.codec = std::string(profile) == "dense" ? Codec::kNone : Codec::kAnchorKv;
    r.options = *profile_options(r.codec == Codec::kNone ? "pooled" : profile);
    r.theta = 0.4;
    r.min_compress_tokens = 1;
    CaseSpec spec;
    spec.tokens = 150;
    spec.head_dim = 32;
    seeds.push_back(seal_state(spec, 1, r));
    AKV_CHECK(seeds.back().status.ok());
  }
  return seeds;
}

}  // namespace akv::kv::testing
