// The device's encoder against the CPU's: the same bytes but for float ties, which are counted,
// must be ties and must be few. Runs on the shim of CUDA, and on a device from the same source.
#include "common/kv/device_encoder.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "common/kv/codec.h"
#include "tests/kv/device_record.h"
#include "tests/kv/reference_case.h"

namespace akv::kv::testing {
namespace {

// Encodes and compares; ties of float sums may decide a few choices, more would be another codec.
RecordTies expect_same(const GoldenCase& c, const CodecOptions& options, double theta) {
  const StatePlan plan = plan_of(c, options, theta);
  EXPECT_EQ(plan.codec, Codec::kAnchorKv) << c.name;
  if (plan.codec != Codec::kAnchorKv) return {};
  DeviceRecord device = encode_on_device(c, plan);
  EXPECT_TRUE(device.status.ok()) << device.status.error().message;
  EXPECT_EQ(device.error, "") << c.name << " " << describe(options);
  if (!device.status.ok() || !device.error.empty()) return {};
  const RecordTies ties = compare_records(c, plan, device);
  SCOPED_TRACE(c.name + " " + describe(options) + ": " + ties.text());
  EXPECT_TRUE(ties.sections_equal);
  EXPECT_LE(ties.anchors, 1);
  EXPECT_LE(ties.anchor_distance, 1e-5);
  EXPECT_LE(ties.slots, 1 + ties.tokens / 1000);
  EXPECT_LE(ties.slot_distance, 1e-6);
  EXPECT_LE(ties.gammas, 1 + ties.tokens / 1000);
  EXPECT_LE(ties.widths, 4);
  EXPECT_LE(ties.width_distance, 1e-4);
  EXPECT_LE(ties.codes, 1 + ties.residuals / 200);
  EXPECT_LE(ties.scales, 1 + ties.residuals / 200);
  return ties;
}

CaseSpec spec(int head_dim, int group, int kv_heads, int64_t tokens) {
  CaseSpec s;
  s.head_dim = head_dim;
  s.group = group;
  s.kv_heads = kv_heads;
  s.tokens = tokens;
  return s;
}

TEST(DeviceEncoder, GoldenCodecInputs) {
  RecordTies all;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(AKV_GOLDEN_DIR "/codec")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const auto c = load_golden_case(entry.path().string());
    ASSERT_TRUE(c.ok()) << c.error().message;
    for (const CodecOptions& options : {paper_options(), pooled_options()}) {
      all += expect_same(*c, options, c->theta);
    }
  }
  EXPECT_EQ(files, 5);
  std::printf("golden/codec: %s\n", all.text().c_str());
}

// One prompt of the length that a plan of k > W + 16 begins at, with residuals of both widths.
TEST(DeviceEncoder, AThousandTokens) {
  CaseSpec s = spec(64, 3, 2, 1024 + 37);
  s.noise = 0.6;
  s.clusters = 40;
  const RecordTies ties = expect_same(make_inputs(s), pooled_options(), 0.12);
  EXPECT_GT(ties.residuals, 100);
  std::printf("1,061 tokens: %s\n", ties.text().c_str());
}

TEST(DeviceEncoder, HeadDimensionsAndGroups) {
  RecordTies all;
  for (const auto& [head_dim, group, kv_heads] :
       {std::array{96, 2, 1}, std::array{128, 8, 1}, std::array{256, 1, 1}, std::array{80, 5, 1},
        std::array{16, 16, 1}}) {
    CaseSpec s = spec(head_dim, group, kv_heads, 275);
    s.seed = static_cast<uint32_t>(head_dim);
    const GoldenCase c = make_inputs(s);
    all += expect_same(c, pooled_options(), 0.35);
    all += expect_same(c, paper_options(), 0.5);
  }
  std::printf("shapes: %s\n", all.text().c_str());
}

// Heads observed one by one, and in groups with a rest, give the bytes of all at once.
TEST(DeviceEncoder, HeadsInGroups) {
  const GoldenCase c = make_inputs(spec(32, 2, 5, 290));
  const StatePlan plan = plan_of(c, pooled_options(), 0.4);
  const DeviceRecord all = encode_on_device(c, plan);
  ASSERT_EQ(all.error, "");
  const uint64_t of_head = uint64_t{290} * 64 * sizeof(float);
  for (const uint64_t bytes : {uint64_t{0}, 2 * of_head}) {
    EXPECT_LT(DeviceEncoder::memory_bytes(plan, bytes), DeviceEncoder::memory_bytes(plan));
    const DeviceRecord grouped = encode_on_device(c, plan, bytes);
    ASSERT_EQ(grouped.error, "");
    EXPECT_TRUE(grouped.words == all.words);
  }
}

// Every option once on either side of the defaults, so that no combination of layout, widths and
// types is without a neighbour.
TEST(DeviceEncoder, Options) {
  const char* changes[][2] = {{"layout", "paper"},    {"coefficient", "bf16"}, {"scale", "absmax"},
                              {"scale_type", "fp32"}, {"domain", "pre"},       {"ranking", "eq6"},
                              {"widths", "2"},        {"k", "paper"},          {"pool", "7"},
                              {"pool", "63"},         {"kernel", "1"},         {"rho", "0"},
                              {"rho", "1"},           {"seed", "123456789"}};
  CaseSpec s = spec(32, 2, 2, 300);
  const GoldenCase c = make_inputs(s);
  for (const auto& [key, value] : changes) {
    CodecOptions options = pooled_options();
    ASSERT_TRUE(set_option(options, key, value).ok()) << key;
    GoldenCase seeded = c;
    seeded.seed = options.seed;
    expect_same(seeded, options, 0.45);
  }
  CodecOptions paper = paper_options();
  ASSERT_TRUE(set_option(paper, "widths", "2+4").ok());
  expect_same(c, paper, 0.6);
}

TEST(DeviceEncoder, PartialInterleavedRotation) {
  CaseSpec s = spec(64, 2, 1, 260);
  s.pairs = kernels::RopePairs::kInterleaved;
  s.rope_dim = 32;
  for (const CodecOptions& options : {paper_options(), pooled_options()}) {
    expect_same(make_inputs(s), options, 0.3);
  }
}

// Zero rows, rows that equal each other (anchors tie, the lowest slot wins), and rows that are all
// the same; budgets in which nothing and everything fits; the least tokens, and a window of 8.
TEST(DeviceEncoder, DegenerateInputs) {
  CaseSpec s = spec(32, 2, 2, 270);
  s.zero_every = 7;
  expect_same(make_inputs(s), pooled_options(), 0.4);
  s.zero_every = 0;
  s.repeat_every = 41;
  expect_same(make_inputs(s), pooled_options(), 0.4);
  s.repeat_every = 1;
  expect_same(make_inputs(s), pooled_options(), 0.4);
  s.repeat_every = 0;
  expect_same(make_inputs(s), pooled_options(), 0.95);
  expect_same(make_inputs(s), pooled_options(), 0.2);
  s.tokens = 112;
  expect_same(make_inputs(s), pooled_options(), 0.9);
  s.tokens = 257;
  s.window = 8;
  expect_same(make_inputs(s), pooled_options(), 0.5);
}

// Values that are not finite are data loss wherever they stand, and lead nowhere else.
TEST(DeviceEncoder, NotFinite) {
  const GoldenCase good = make_inputs(spec(32, 2, 2, 230));
  const StatePlan plan = plan_of(good, pooled_options(), 0.5);
  const auto status_with = [&](std::vector<bf16> GoldenCase::*tensor, size_t at, uint16_t bits) {
    GoldenCase c = good;
    (c.*tensor)[at].bits = bits;
    return encode_on_device(c, plan);
  };
  // NaN and both infinities, at the first and the last element.
  uint16_t bits = 0x7fc0;
  for (const auto tensor : {&GoldenCase::k, &GoldenCase::v, &GoldenCase::q}) {
    for (const size_t at : {size_t{0}, (good.*tensor).size() - 1}) {
      const DeviceRecord r = status_with(tensor, at, bits);
      ASSERT_EQ(r.error, "");
      ASSERT_FALSE(r.status.ok());
      EXPECT_EQ(r.status.error().code, Code::kDataLoss);
      bits = bits == 0x7fc0 ? 0x7f80 : bits == 0x7f80 ? 0xff80 : 0x7fc0;
    }
  }
  // Everything not finite at once.
  GoldenCase c = good;
  for (auto* tensor : {&c.k, &c.v, &c.q}) {
    for (bf16& x : *tensor) x.bits = 0xffff;
  }
  const DeviceRecord r = encode_on_device(c, plan);
  EXPECT_EQ(r.error, "");
  EXPECT_FALSE(r.status.ok());
}

// A record built in its place in a device state, 8 bytes past any better alignment, and sealed
// there.
TEST(DeviceEncoder, StatesOnTheDevice) {
  const GoldenCase c = make_inputs(spec(32, 2, 2, 230));
  for (const CodecOptions& options : {paper_options(), pooled_options()}) {
    const StatePlan plan = plan_of(c, options, 0.5);
    const DeviceRecord own = encode_on_device(c, plan);
    ASSERT_EQ(own.error, "");
    const DeviceRecord placed = encode_in_place(c, plan, 8);
    ASSERT_EQ(placed.error, "");
    ASSERT_TRUE(placed.status.ok());
    EXPECT_TRUE(placed.words == own.words);
  }
}

#ifndef AKV_ON_GPU
// The shim works only when somebody waits; a device may be done by then.
TEST(DeviceEncoder, NobodyWaited) {
  const GoldenCase c = make_inputs(spec(32, 2, 2, 230));
  const Status status = finish_too_early(c, plan_of(c, pooled_options(), 0.5));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::kInternal);
}
#endif

TEST(DeviceEncoder, InputOfAnotherPlan) {
  const GoldenCase c = make_inputs(spec(32, 2, 2, 230));
  StatePlan plan = plan_of(c, pooled_options(), 0.5);
  ASSERT_TRUE(encode_on_device(c, plan).status.ok());
  plan.shape.head_dim = 64;
  EXPECT_EQ(encode_on_device(c, plan).status.error().code, Code::kInvalidArgument);
}

// Dense records are the CPU's bytes but for keys that a rotation rounds the other way.
TEST(DeviceEncoder, DenseRecords) {
  for (const auto pairs : {kernels::RopePairs::kHalf, kernels::RopePairs::kInterleaved}) {
    CaseSpec s = spec(48, 2, 2, 75);
    s.pairs = pairs;
    s.rope_dim = 32;
    GoldenCase c = make_inputs(s);
    PlanRequest request;
    request.codec = Codec::kNone;
    const StatePlan plan = *plan_state(c.shape(), c.tokens, request);
    DeviceRecord device = encode_on_device(c, plan);
    ASSERT_TRUE(device.status.ok());
    ASSERT_EQ(device.error, "");
    std::vector<uint64_t> words(plan.record_bytes[c.layer] / 8 + 1);
    const std::span<std::byte> record(reinterpret_cast<std::byte*>(words.data()),
                                      plan.record_bytes[c.layer]);
    Workspace workspace;
    const kernels::RopeTable rope(c.rope, c.tokens);
    const LayerInput input{c.layer, c.k.data(), c.v.data(), nullptr, &rope};
    ASSERT_TRUE(compress_layer(input, plan, 7, record, workspace, serial()).ok());
    const auto theirs = device.bytes(plan, c.layer);
    int differ = 0;
    for (size_t i = 56; i < record.size(); i += 2) {
      const bool same = record[i] == theirs[i] && record[i + 1] == theirs[i + 1];
      differ += !same;
    }
    EXPECT_LE(differ, 3);
    c.v[11].bits = 0x7fc0;
    EXPECT_EQ(encode_on_device(c, plan).status.error().code, Code::kDataLoss);
  }
}

}  // namespace
}  // namespace akv::kv::testing
