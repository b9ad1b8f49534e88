// Mutates a tiny model file at random, a bounded number of times from fixed seeds: whatever the
// bytes, loading ends in a model or in an error. Run under ASan+UBSan by the suite; the bytes have
// an allocation of their own, so that a read past the file's end is seen.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/model/gguf.h"
#include "common/model/model.h"
#include "tests/model/gguf_builder.h"

namespace akv::model {
namespace {

using Bytes = std::vector<std::byte>;

// Values that break length arithmetic more often than uniform ones.
uint64_t hostile_number(std::mt19937_64& rng) {
  constexpr uint64_t kEdges[] = {0,
                                 1,
                                 2,
                                 7,
                                 8,
                                 31,
                                 255,
                                 256,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 32,
                                 uint64_t{1} << 61,
                                 uint64_t{1} << 62,
                                 uint64_t{1} << 63,
                                 ~uint64_t{0},
                                 ~uint64_t{0} - 7};
  if (rng() % 3 == 0) return rng() >> (rng() % 64);
  return kEdges[rng() % std::size(kEdges)];
}

void mutate(Bytes& bytes, size_t head, std::mt19937_64& rng) {
  // Mostly in the head, where the structure is.
  const size_t size = rng() % 16 == 0 ? bytes.size() : std::min(head, bytes.size());
  if (size < 9) return;
  const size_t at = rng() % (size - 8);
  switch (rng() % 5) {
    case 0:
      bytes[at] ^= static_cast<std::byte>(1u << (rng() % 8));
      break;
    case 1:
      bytes[at] = static_cast<std::byte>(rng());
      break;
    case 2: {
      const uint64_t value = hostile_number(rng);
      std::memcpy(bytes.data() + at, &value, rng() % 2 == 0 ? 8 : 4);
      break;
    }
    case 3: {  // move a piece over another
      const size_t from = rng() % (size - 8);
      const size_t count = std::min<size_t>(rng() % 64, size - std::max(at, from));
      std::memmove(bytes.data() + at, bytes.data() + from, count);
      break;
    }
    default:
      bytes.resize(bytes.size() - rng() % std::min<size_t>(bytes.size(), 200));
  }
}

// What reads an accepted file: the arrays, and every byte of each tensor's ends.
void touch(const GgufFile& file) {
  for (const GgufFile::Entry& entry : file.metadata()) {
    if (const auto* array = std::get_if<GgufArray>(&entry.value)) {
      (void)array->strings();
      (void)array->integers();
      (void)array->floats();
    }
  }
  unsigned sum = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    sum += static_cast<unsigned>(tensor.data.front()) + static_cast<unsigned>(tensor.data.back());
  }
  EXPECT_GE(sum, 0u);
}

GgufBuilder sample() {
  TinyModel tiny;
  tiny.arch = "qwen2";
  tiny.bias = true;
  GgufBuilder b = tiny.builder();
  b.add_uint("general.alignment", 32).add_ints("ints", {1, 2, 3}).add_string("text", "words");
  b.add_raw("floats", 9, uint32_t{6}, uint64_t{2}, 0.5f, -1.0f);
  b.add_raw("nested", 9, uint32_t{9}, uint64_t{1}, uint32_t{8}, uint64_t{1}, uint64_t{0});
  return b;
}

TEST(GgufFuzz, EndsInAModelOrAnError) {
  const Bytes good = sample().build();
  const auto parsed = GgufFile::parse(good, "good");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const size_t head = (*parsed)->head_bytes().size();
  int accepted = 0;
  int refused = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    std::mt19937_64 rng(seed);
    Bytes bytes = good;
    for (uint64_t n = 1 + rng() % 4; n > 0; --n) mutate(bytes, head, rng);
    const Bytes exact(bytes.begin(), bytes.end());  // capacity == size
    auto file = GgufFile::parse(exact, "mutant");
    if (!file.ok()) {
      EXPECT_FALSE(file.error().message.empty());
      ++refused;
      continue;
    }
    touch(**file);
    const auto model = Model::create(std::move(file).value());
    model.ok() ? ++accepted : ++refused;
  }
  // Both outcomes are common, so the mutations reach behind the first check.
  EXPECT_GT(accepted, 200);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace akv::model
