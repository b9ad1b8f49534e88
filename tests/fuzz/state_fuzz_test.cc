// Bounded random mutations of records and headers, half of them behind a fresh checksum.
#include <gtest/gtest.h>

#include <random>

#include "tests/fuzz/state_fuzz.h"

namespace akv::kv::testing {
namespace {

// An 8-byte aligned copy.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> from)
      : words_(from.size() / 8 + 1), size_(from.size()) {
    std::memcpy(words_.data(), from.data(), size_);
  }
  std::span<std::byte> span() { return {reinterpret_cast<std::byte*>(words_.data()), size_}; }

 private:
  std::vector<uint64_t> words_;
  size_t size_;
};

void mutate(std::span<std::byte> bytes, std::mt19937& rng) {
  const uint32_t edits = 1 + rng() % 4;
  for (uint32_t i = 0; i < edits; ++i) {
    // Half of the edits hit the sections before the anchors, where the structure is.
    const size_t range = rng() % 2 ? bytes.size() : std::min<size_t>(bytes.size(), 600);
    const size_t at = rng() % range;
    switch (rng() % 4) {
      case 0:
        bytes[at] ^= std::byte{1} << (rng() % 8);
        break;
      case 1:
        bytes[at] = std::byte{0xff};
        break;
      case 2:
        bytes[at] = static_cast<std::byte>(rng());
        break;
      default: {
        const size_t n = std::min<size_t>(rng() % 64, bytes.size() - at);
        std::memset(bytes.data() + at, static_cast<int>(rng() & 0xff), n);
      }
    }
  }
}

TEST(StateFuzz, MutatedRecordsNeverCrash) {
  std::mt19937 rng(20240817);
  int accepted = 0, refused = 0;
  for (const SealedState& s : fuzz_seeds()) {
    const auto original = s.buffer.record(s.plan, 0);
    Bytes same(original);
    EXPECT_TRUE(survive_record(s, same.span(), false));
    for (int round = 0; round < 1500; ++round) {
      Bytes bytes(original);
      mutate(bytes.span(), rng);
      (survive_record(s, bytes.span(), rng() % 4 != 0) ? accepted : refused) += 1;
    }
    for (size_t size = 0; size < original.size(); size += 1 + original.size() / 50) {
      Bytes bytes(original.first(size));
      EXPECT_FALSE(survive_record(s, bytes.span(), true));
    }
  }
  // Both sides of the check were met: resealed damage to codes or rows is valid, to structure not.
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

TEST(StateFuzz, MutatedHeadersAreRefused) {
  std::mt19937 rng(7);
  const auto seeds = fuzz_seeds();
  const SealedState& s = seeds[1];
  const auto original = s.buffer.bytes().first(s.plan.header_bytes);
  for (int round = 0; round < 3000; ++round) {
    Bytes bytes(original);
    mutate(bytes.span(), rng);
    if (std::equal(original.begin(), original.end(), bytes.span().begin())) continue;
    const auto body = bytes.span().first(bytes.span().size() - 8);
    const uint64_t sum = xxh3_64(body);
    if (rng() % 2) std::memcpy(bytes.span().data() + body.size(), &sum, 8);
    const bool whole = std::equal(original.begin(), original.end(), bytes.span().begin());
    EXPECT_TRUE(whole || !verify_header(bytes.span(), s.plan, s.identity).ok());
  }
}

}  // namespace
}  // namespace akv::kv::testing
