// The state format's bytes: round trips, the worked example of proto/README.md, and damage.
#include "proto/state.h"

#include <gtest/gtest.h>

#include <cstring>

namespace akv::proto {
namespace {

// FNV-1a: the format does not care which checksum it is given.
uint64_t fnv(std::span<const std::byte> bytes) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (std::byte b : bytes) h = (h ^ std::to_integer<uint64_t>(b)) * 0x100000001b3ull;
  return h;
}

StateHeader example() {
  StateHeader h;
  for (int i = 0; i < 32; ++i) {
    h.model_fingerprint[i] = static_cast<uint8_t>(i);
    h.tokenizer_hash[i] = static_cast<uint8_t>(0xf0 - i);
  }
  h.prompt_hash = 0x1122334455667788;
  h.codec = 1;
  h.layout = 1;
  h.coefficient = 1;
  h.scale = 1;
  h.scale_type = 1;
  h.domain = 1;
  h.ranking = 1;
  h.widths = 1;
  h.anchors = 1;
  h.window = 32;
  h.rho_percent = 70;
  h.kernel = 7;
  h.pool = 31;
  h.seed = 42;
  h.layers = 2;
  h.heads = 9;
  h.kv_heads = 3;
  h.head_dim = 64;
  h.tokens = 8000;
  h.theta = 0.05;
  h.record_bytes = {307184, 307184};
  return h;
}

std::vector<std::byte> encoded(const StateHeader& h) {
  std::vector<std::byte> bytes(state_header_bytes(static_cast<uint32_t>(h.record_bytes.size())));
  encode_state_header(h, bytes, fnv);
  return bytes;
}

template <class T>
T at(const std::vector<std::byte>& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The offsets that proto/README.md documents.
TEST(StateHeader, WorkedExample) {
  const auto b = encoded(example());
  ASSERT_EQ(b.size(), 200u);
  EXPECT_EQ(std::memcmp(b.data(), "AKVSTATE", 8), 0);
  EXPECT_EQ(at<uint32_t>(b, 8), 1u);
  EXPECT_EQ(at<uint32_t>(b, 12), 200u);
  EXPECT_EQ(at<uint8_t>(b, 16 + 31), 31);
  EXPECT_EQ(at<uint8_t>(b, 48), 0xf0);
  EXPECT_EQ(at<uint64_t>(b, 80), 0x1122334455667788u);
  EXPECT_EQ(at<uint8_t>(b, 104), 1);
  EXPECT_EQ(at<uint8_t>(b, 112), 1);
  EXPECT_EQ(at<uint8_t>(b, 113), 0);
  EXPECT_EQ(at<uint32_t>(b, 120), 32u);
  EXPECT_EQ(at<uint32_t>(b, 124), 70u);
  EXPECT_EQ(at<uint64_t>(b, 136), 42u);
  EXPECT_EQ(at<uint32_t>(b, 144), 2u);
  EXPECT_EQ(at<uint32_t>(b, 156), 64u);
  EXPECT_EQ(at<uint64_t>(b, 160), 8000u);
  EXPECT_EQ(at<double>(b, 168), 0.05);
  EXPECT_EQ(at<uint64_t>(b, 184), 307184u);
  EXPECT_EQ(at<uint64_t>(b, 192), fnv(std::span(b).first(192)));
}

TEST(StateHeader, RoundTrip) {
  const auto b = encoded(example());
  StateHeader back;
  uint64_t sum = 0;
  ASSERT_EQ(decode_state_header(b, fnv, back, &sum), StateError::kNone);
  EXPECT_EQ(back, example());
  EXPECT_EQ(sum, at<uint64_t>(b, 192));
}

// Applies a change behind a fresh checksum.
StateError after(void (*change)(std::vector<std::byte>&)) {
  auto b = encoded(example());
  change(b);
  if (b.size() >= 8) {
    const uint64_t sum = fnv(std::span(b).first(b.size() - 8));
    std::memcpy(b.data() + b.size() - 8, &sum, 8);
  }
  StateHeader h;
  uint64_t sum = 0;
  return decode_state_header(b, fnv, h, &sum);
}

TEST(StateHeader, RefusesWhatIsNotOne) {
  EXPECT_EQ(after([](auto& b) { b[0] = std::byte{'B'}; }), StateError::kMagic);
  EXPECT_EQ(after([](auto& b) { b[8] = std::byte{2}; }), StateError::kVersion);
  EXPECT_EQ(after([](auto& b) { b[12] = std::byte{199}; }), StateError::kShort);
  EXPECT_EQ(after([](auto& b) { b[115] = std::byte{1}; }), StateError::kField);
  EXPECT_EQ(after([](auto& b) { b[144] = std::byte{3}; }), StateError::kShort);
  EXPECT_EQ(after([](auto& b) { b[147] = std::byte{0xff}; }), StateError::kField);
  EXPECT_EQ(after([](auto& b) { b.resize(b.size() - 8); }), StateError::kShort);
  EXPECT_EQ(after([](auto& b) { b.resize(100); }), StateError::kShort);
  EXPECT_EQ(after([](auto& b) { b.clear(); }), StateError::kShort);
}

TEST(StateHeader, ChecksumComesFirst) {
  auto b = encoded(example());
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] ^= std::byte{0x10};
    StateHeader h;
    uint64_t sum = 0;
    EXPECT_EQ(decode_state_header(b, fnv, h, &sum), StateError::kChecksum) << i;
    b[i] ^= std::byte{0x10};
  }
}

TEST(Record, SealAndOpen) {
  std::vector<std::byte> record(256, std::byte{5});
  RecordHeader h;
  h.kind = RecordKind::kAnchorKv;
  h.layer = 17;
  h.anchors = 63;
  h.record_bytes = 256;
  h.key_bytes = 100;
  h.value_bytes = 60;
  h.state_checksum = 0xabcdef;
  seal_record(h, record, fnv);
  RecordHeader back;
  ASSERT_EQ(open_record(record, fnv, back), StateError::kNone);
  EXPECT_EQ(back, h);
  EXPECT_EQ(std::memcmp(record.data() + 8, "AKVR", 4), 0);
  EXPECT_EQ(record[kRecordHeaderBytes], std::byte{5});
  EXPECT_EQ(open_record(std::span(record).first(255), fnv, back), StateError::kChecksum);
  EXPECT_EQ(open_record(std::span(record).first(40), fnv, back), StateError::kShort);

  const auto resealed = [&](size_t at, uint8_t value) {
    auto copy = record;
    copy[at] = std::byte{value};
    const uint64_t sum = fnv(std::span(copy).subspan(8));
    std::memcpy(copy.data(), &sum, 8);
    return open_record(copy, fnv, back);
  };
  EXPECT_EQ(resealed(8, 'X'), StateError::kMagic);
  EXPECT_EQ(resealed(12, 9), StateError::kVersion);
  EXPECT_EQ(resealed(14, 2), StateError::kField);
  EXPECT_EQ(resealed(24, 1), StateError::kShort);
}

TEST(StateError, EachHasItsText) {
  for (StateError e : {StateError::kShort, StateError::kChecksum, StateError::kMagic,
                       StateError::kVersion, StateError::kField}) {
    EXPECT_GT(std::strlen(state_error_text(e)), 10u);
  }
}

}  // namespace
}  // namespace akv::proto
