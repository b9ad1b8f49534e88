// Sealed states: what verification accepts, and everything that it must refuse.
#include "common/kv/state.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/checksum.h"
#include "common/kv/record_layout.h"
#include "common/kv/record_view.h"
#include "proto/state.h"
#include "tests/kv/state_fixture.h"

namespace akv::kv {
namespace {

using testing::CaseSpec;
using testing::seal_state;
using testing::SealedState;

PlanRequest request(const char* profile, double theta = 0.3) {
  PlanRequest r;
  r.options = *profile_options(profile);
  r.theta = theta;
  r.min_compress_tokens = 1;
  return r;
}

Code code_of(const Status& s) { return s.ok() ? Code{} : s.error().code; }

TEST(State, VerifiesWhatItSealed) {
  for (const char* profile : {"paper", "pooled"}) {
    const SealedState s = seal_state(CaseSpec{}, 3, request(profile));
    ASSERT_TRUE(s.status.ok()) << s.status.error().message;
    ASSERT_EQ(s.plan.codec, Codec::kAnchorKv);
    const auto header =
        verify_header(s.buffer.bytes().first(s.plan.header_bytes), s.plan, s.identity);
    ASSERT_TRUE(header.ok()) << header.error().message;
    EXPECT_EQ(*header, s.checksum);
    for (int l = 0; l < 3; ++l) {
      const Status ok = verify_record(s.buffer.record(s.plan, l), l, s.plan, s.checksum);
      EXPECT_TRUE(ok.ok()) << ok.error().message;
    }
    const StateView view = StateView::create(s.buffer.bytes(), s.plan);
    EXPECT_EQ(view.layers(), 3);
    EXPECT_FALSE(view.is_dense());
    EXPECT_EQ(view.compressed(2)->prefix, s.plan.tokens - 32);
    EXPECT_EQ(view.compressed(2)->anchors, s.plan.layer.k);
  }
}

TEST(State, DenseRecordHoldsRotatedKeysAndValues) {
  PlanRequest r = request("pooled");
  r.codec = Codec::kNone;
  CaseSpec spec;
  spec.tokens = 90;
  const SealedState s = seal_state(spec, 2, r);
  ASSERT_TRUE(s.status.ok());
  ASSERT_TRUE(verify_record(s.buffer.record(s.plan, 1), 1, s.plan, s.checksum).ok());
  const StateView view = StateView::create(s.buffer.bytes(), s.plan);
  ASSERT_TRUE(view.is_dense());
  const kernels::DenseLayerView& layer = *view.dense(1);
  const int d = spec.head_dim;
  std::vector<float> x(d);
  for (int64_t t : {0, 1, 89}) {
    for (int h = 0; h < spec.kv_heads; ++h) {
      const bf16* k = s.inputs.k.data() + (t * spec.kv_heads + h) * d;
      const bf16* v = s.inputs.v.data() + (t * spec.kv_heads + h) * d;
      for (int i = 0; i < d; ++i) x[i] = to_float(k[i]);
      kernels::rope_rotate(*s.rope, x.data(), t, x.data());
      for (int i = 0; i < d; ++i) {
        const int64_t at = (int64_t{h} * spec.tokens + t) * d + i;
        EXPECT_EQ(layer.v[at].bits, v[i].bits);
        EXPECT_NEAR(to_float(layer.k[at]), x[i], 0.005f * (std::abs(x[i]) + 0.01f));
      }
    }
  }
}

TEST(State, RefusesAnotherIdentityOrPlan) {
  const SealedState s = seal_state(CaseSpec{}, 2, request("pooled"));
  const auto header = s.buffer.bytes().first(s.plan.header_bytes);
  const auto refused = [&](const StatePlan& plan, const StateIdentity& identity) {
    const auto r = verify_header(header, plan, identity);
    return r.ok() ? std::string("accepted") : r.error().param;
  };
  StateIdentity other = s.identity;
  other.model_fingerprint[3] ^= 1;
  EXPECT_EQ(refused(s.plan, other), "model");
  other = s.identity;
  other.tokenizer_hash[0] ^= 1;
  EXPECT_EQ(refused(s.plan, other), "tokenizer");
  other = s.identity;
  other.prompt_hash ^= 1;
  EXPECT_EQ(refused(s.plan, other), "prompt");
  StatePlan plan = s.plan;
  plan.options.seed = 43;
  EXPECT_EQ(refused(plan, s.identity), "shape or codec option");
  plan = s.plan;
  plan.record_bytes[1] += 8;
  EXPECT_EQ(refused(plan, s.identity), "plan");
  plan = s.plan;
  ++plan.tokens;
  EXPECT_EQ(refused(plan, s.identity), "prompt");
  plan = s.plan;
  plan.header_bytes += 8;
  EXPECT_FALSE(verify_header(header, plan, s.identity).ok());
}

TEST(State, RefusesARecordOfAnotherLayerOrState) {
  const SealedState s = seal_state(CaseSpec{}, 2, request("pooled"));
  const auto record = s.buffer.record(s.plan, 0);
  EXPECT_TRUE(verify_record(record, 0, s.plan, s.checksum).ok());
  EXPECT_EQ(code_of(verify_record(record, 1, s.plan, s.checksum)), Code::kMismatch);
  EXPECT_EQ(code_of(verify_record(record, 0, s.plan, s.checksum + 1)), Code::kMismatch);
  EXPECT_EQ(code_of(verify_record(record.first(record.size() - 8), 0, s.plan, s.checksum)),
            Code::kDataLoss);
}

// Every single flipped bit of a sample is found by the checksum.
TEST(State, ChecksumFindsFlippedBits) {
  SealedState s = seal_state(CaseSpec{}, 1, request("paper"));
  const auto record = s.buffer.record(s.plan, 0);
  for (size_t at = 0; at < record.size(); at += 97) {
    record[at] ^= std::byte{4};
    EXPECT_EQ(code_of(verify_record(record, 0, s.plan, s.checksum)), Code::kDataLoss) << at;
    record[at] ^= std::byte{4};
  }
  EXPECT_TRUE(verify_record(record, 0, s.plan, s.checksum).ok());
}

// A hostile sender can compute checksums: damage behind a fresh one must still be refused, with the
// reason.
class Resealed : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    state_ = seal_state(CaseSpec{}, 1, request(GetParam()));
    ASSERT_TRUE(state_.status.ok());
    layout_ = record_layout(state_.plan.shape, state_.plan.tokens, state_.plan.layer,
                            state_.plan.options);
    record_ = state_.buffer.record(state_.plan, 0);
    original_.assign(record_.begin(), record_.end());
  }

  template <class T>
  T& at(uint64_t offset, int64_t index = 0) {
    return reinterpret_cast<T*>(record_.data() + offset)[index];
  }

  // Reseals, verifies, restores; returns the reason of the refusal.
  std::string refusal() {
    const uint64_t sum = xxh3_64(record_.subspan(8));
    std::memcpy(record_.data(), &sum, 8);
    const Status s = verify_record(record_, 0, state_.plan, state_.checksum);
    std::copy(original_.begin(), original_.end(), record_.begin());
    if (s.ok()) return "accepted";
    EXPECT_EQ(s.error().code, Code::kDataLoss);
    return s.error().message.substr(s.error().message.find(": ") + 2);
  }

  SealedState state_;
  RecordLayout layout_;
  std::span<std::byte> record_;
  std::vector<std::byte> original_;
};

TEST_P(Resealed, DamagedSections) {
  EXPECT_EQ(refusal(), "accepted");
  const bool paper = std::string(GetParam()) == "paper";

  at<uint64_t>(layout_.masks) ^= 2;
  EXPECT_NE(refusal(), "accepted");
  at<uint64_t>(layout_.masks, layout_.words - 1) |= uint64_t{1} << 63;
  EXPECT_EQ(refusal(), "a residual lies outside the prompt");
  at<uint32_t>(layout_.prefixes, 1) += 1;
  EXPECT_EQ(refusal(), "prefix counts do not match the masks");
  at<int32_t>(layout_.head_offsets, 1) = -5;
  EXPECT_EQ(refusal(), "head offsets do not match the masks");
  if (paper) {
    at<int64_t>(layout_.anchor_positions, 2) = int64_t{1} << 40;
    EXPECT_EQ(refusal(), "anchor positions are not ascending within the prompt");
    at<int32_t>(layout_.token_positions, 7) = 8;
    EXPECT_EQ(refusal(), "token positions are not contiguous");
    at<uint16_t>(layout_.slots, 5) = 60000;
    EXPECT_EQ(refusal(), "a slot names no anchor");
    at<bf16>(layout_.gammas, 5).bits = 0x7f80;
    EXPECT_EQ(refusal(), "a coefficient is not finite");
    at<float>(layout_.value_region) = -1;
    EXPECT_EQ(refusal(), "a scale is negative or not finite");
    // The last value residual's chunk byte.
    const auto n = static_cast<uint64_t>(at<int32_t>(layout_.head_offsets, 5));
    const RegionLayout r = region_layout(64, n, 0, 4, true);
    at<uint8_t>(layout_.value_region + r.chunks, int64_t(n) - 1) ^= 1;
    EXPECT_EQ(refusal(), "chunk positions do not match the mask");
  } else {
    at<uint32_t>(layout_.anchor_positions, 1) = at<uint32_t>(layout_.anchor_positions, 0);
    EXPECT_EQ(refusal(), "anchor positions are not ascending within the prompt");
    at<uint8_t>(layout_.slots, 5) = 255;
    EXPECT_EQ(refusal(), "a slot names no anchor");
    at<bf16>(layout_.key_region).bits = 0x7fc0;
    EXPECT_EQ(refusal(), "a scale is negative or not finite");
  }
  at<bf16>(layout_.anchors, 17).bits = 0xff80;
  EXPECT_EQ(refusal(), "an anchor row is not finite");
  record_[record_.size() - 1] = std::byte{1};
  const std::string tail = refusal();
  EXPECT_TRUE(tail == "padding is not zero" || tail == "chunk positions do not match the mask" ||
              tail == "accepted")
      << tail;
}

INSTANTIATE_TEST_SUITE_P(Profiles, Resealed, ::testing::Values("paper", "pooled"));

TEST(Compress, RefusesBadInput) {
  SealedState s = seal_state(CaseSpec{}, 1, request("pooled"));
  Workspace w;
  const auto run = [&](LayerInput input, std::span<std::byte> record) {
    return code_of(compress_layer(input, s.plan, 1, record, w, serial()));
  };
  const auto record = s.buffer.record(s.plan, 0);
  const LayerInput good{0, s.inputs.k.data(), s.inputs.v.data(), s.inputs.q.data(), s.rope.get()};
  EXPECT_EQ(run(good, record), Code{});
  LayerInput bad = good;
  bad.layer = 1;
  EXPECT_EQ(run(bad, record), Code::kInvalidArgument);
  bad = good;
  bad.rope = nullptr;
  EXPECT_EQ(run(bad, record), Code::kInvalidArgument);
  EXPECT_EQ(run(good, record.first(record.size() - 8)), Code::kInvalidArgument);
  s.inputs.k[77].bits = 0x7fc0;  // NaN
  EXPECT_EQ(run(good, record), Code::kDataLoss);
  s.inputs.k[77].bits = 0;
  s.inputs.q[3].bits = 0xff80;  // -infinity
  EXPECT_EQ(run(good, record), Code::kDataLoss);
}

TEST(StateBuffer, IsAlignedAndMovable) {
  const SealedState s = seal_state(CaseSpec{}, 1, request("pooled"));
  StateBuffer a = *StateBuffer::create(s.plan);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.bytes().data()) % 64, 0u);
  EXPECT_EQ(a.size(), s.plan.total_bytes);
  const std::byte* at = a.bytes().data();
  StateBuffer b = std::move(a);
  EXPECT_EQ(b.bytes().data(), at);
}

}  // namespace
}  // namespace akv::kv
