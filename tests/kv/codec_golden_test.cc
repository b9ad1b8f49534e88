// The codec against golden/codec and against the oracle on other shapes, on every instruction set;
// and that the comparison itself notices a wrong value.
#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/worker_pool.h"
#include "kernels/isa.h"
#include "tests/kv/codec_compare.h"
#include "tests/kv/reference_case.h"

namespace akv::kv::testing {
namespace {

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_supported(isa)) all.push_back(isa);
  }
  return all;
}

void expect_all_ok(const GoldenCase& c, const Parallel& parallel) {
  for (const Finding& f : compare_case(c, parallel)) {
    EXPECT_TRUE(f.ok) << c.name << " " << f.profile << " " << f.quantity << " " << f.deviation
                      << " " << f.note << " on " << isa_name(active_isa());
  }
}

TEST(CodecGolden, EveryFileOnEveryIsa) {
  WorkerPool pool(2);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(AKV_GOLDEN_DIR "/codec")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const auto c = load_golden_case(entry.path().string());
    ASSERT_TRUE(c.ok()) << c.error().message;
    for (Isa isa : isas()) {
      const ScopedIsa scoped(isa);
      expect_all_ok(*c, parallel_view(pool));
    }
  }
  EXPECT_EQ(files, 5);
}

CaseSpec spec(int head_dim, int group, int kv_heads, int64_t tokens) {
  CaseSpec s;
  s.head_dim = head_dim;
  s.group = group;
  s.kv_heads = kv_heads;
  s.tokens = tokens;
  return s;
}

TEST(CodecReference, HeadDimsThatAreNoPowerOfTwo) {
  for (int d : {16, 80, 96, 112}) {
    CaseSpec s = spec(d, 2, 2, 300);
    s.theta = 0.3;
    s.seed = static_cast<uint32_t>(d);
    const GoldenCase c = make_reference_case(s);
    for (Isa isa : isas()) {
      const ScopedIsa scoped(isa);
      SCOPED_TRACE(d);
      expect_all_ok(c, serial());
    }
  }
}

TEST(CodecReference, GroupsOfOneAndSixteen) {
  expect_all_ok(make_reference_case(spec(64, 1, 3, 290)), serial());
  expect_all_ok(make_reference_case(spec(32, 16, 1, 270)), serial());
}

TEST(CodecReference, PartialInterleavedRotation) {
  CaseSpec s = spec(64, 2, 1, 300);
  s.pairs = kernels::RopePairs::kInterleaved;
  s.rope_dim = 32;
  expect_all_ok(make_reference_case(s), serial());
}

TEST(CodecReference, ZeroRowsAndRepeatedRows) {
  CaseSpec s = spec(64, 3, 2, 330);
  s.zero_every = 7;
  expect_all_ok(make_reference_case(s), serial());
  s.zero_every = 0;
  s.repeat_every = 41;  // anchors that equal each other: ties go to the lowest slot
  expect_all_ok(make_reference_case(s), serial());
}

TEST(CodecReference, OtherWindowsAndBudgets) {
  CaseSpec s = spec(64, 2, 2, 257);
  s.window = 8;
  s.theta = 0.9;  // every residual has 4 bits and bytes are left
  expect_all_ok(make_reference_case(s), serial());
  s.window = 32;
  s.tokens = 700;
  s.theta = 0.13;
  expect_all_ok(make_reference_case(s), serial());
}

// Changes one value of a good case; the comparison must fail in that quantity.
void expect_failure(GoldenCase c, const std::string& profile, const std::string& quantity,
                    void (*damage)(GoldenProfile&)) {
  damage(c.profiles.at(profile));
  bool failed = false;
  for (const Finding& f : compare_case(c, serial())) {
    if (f.profile == profile && f.quantity == quantity) failed = !f.ok;
  }
  EXPECT_TRUE(failed) << profile << " " << quantity;
}

TEST(CodecCompare, NoticesEveryKindOfWrongValue) {
  const GoldenCase c = make_reference_case(spec(64, 2, 2, 300));
  for (const std::string profile : {"paper", "pooled"}) {
    expect_failure(c, profile, "plan", [](GoldenProfile& g) { g.plan.bytes += 1; });
    expect_failure(c, profile, "anchors", [](GoldenProfile& g) {
      // Moves one selected anchor to a free neighbour.
      auto& a = g.heads[0].anchors;
      for (size_t i = 0; i + 1 < a.size(); ++i) {
        if (a[i] + 1 < a[i + 1]) {
          ++a[i];
          return;
        }
      }
    });
    expect_failure(c, profile, "score", [](GoldenProfile& g) { g.heads[1].score[9] *= 1.001f; });
    expect_failure(c, profile, "slot", [](GoldenProfile& g) {
      auto& slot = g.heads[0].side[0].slot;
      slot[5] = slot[5] == 0 ? 1 : 0;
    });
    expect_failure(c, profile, "gamma",
                   [](GoldenProfile& g) { g.heads[0].side[1].gamma[3] *= 1.05f; });
    expect_failure(c, profile, "utility", [](GoldenProfile& g) {
      auto& u = g.heads[0].side[0].utility;
      *std::max_element(u.begin(), u.end()) *= 1.01f;
    });
    expect_failure(c, profile, "codes", [](GoldenProfile& g) {
      auto& code = g.heads[0].side[1].codes[0].at(11);
      code = code == 0 ? 1 : static_cast<uint8_t>(code - 1);
    });
    expect_failure(c, profile, "scales",
                   [](GoldenProfile& g) { g.heads[0].side[0].scale[0].at(0) *= 1.02f; });
    expect_failure(c, profile, "hat",
                   [](GoldenProfile& g) { g.heads[1].side[0].hat[100] += 0.1f; });
    expect_failure(c, profile, "attention", [](GoldenProfile& g) {
      for (float& x : g.attention) x *= 1.03f;
    });
  }
}

TEST(CodecCompare, NoticesAResidualOnTheWrongToken) {
  CaseSpec wide = spec(64, 2, 1, 300);
  wide.theta = 0.28;
  GoldenCase c = make_reference_case(wide);
  // Swaps the widths of the most useful token and of one that has none.
  GoldenSide& s = c.profiles["paper"].heads[0].side[0];
  const size_t best = std::max_element(s.utility.begin(), s.utility.end()) - s.utility.begin();
  size_t none = 0;
  while (none < s.bits.size() && !(s.bits[none] == 0 && s.utility[none] > 0)) ++none;
  ASSERT_EQ(s.bits[best], 2);
  ASSERT_LT(none, s.bits.size());
  std::swap(s.bits[best], s.bits[none]);
  bool failed = false;
  for (const Finding& f : compare_case(c, serial())) {
    if (f.profile == "paper" && f.quantity == "bits") failed = !f.ok;
  }
  EXPECT_TRUE(failed);
}

TEST(GoldenFile, BadFilesAreNamed) {
  EXPECT_FALSE(load_golden_case("/nonexistent.safetensors").ok());
  EXPECT_FALSE(load_golden_case(AKV_GOLDEN_DIR "/codec/plans.json").ok());
}

}  // namespace
}  // namespace akv::kv::testing
