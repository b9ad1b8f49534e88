// libFuzzer entry over received records; built where the compiler has -fsanitize=fuzzer. The first
// byte picks the seed state, bit 7 whether the checksum is made to fit.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/state_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto seeds = akv::kv::testing::fuzz_seeds();
  if (size < 1) return 0;
  const auto& s = seeds[(data[0] & 0x7f) % seeds.size()];
  // Input bytes are laid over a good record, so that the fuzzer starts behind the size check.
  const auto original = s.buffer.record(s.plan, 0);
  std::vector<uint64_t> words(original.size() / 8 + 1);
  auto* record = reinterpret_cast<std::byte*>(words.data());
  std::memcpy(record, original.data(), original.size());
  std::memcpy(record, data + 1, std::min(size - 1, original.size()));
  akv::kv::testing::survive_record(s, {record, original.size()}, (data[0] & 0x80) != 0);
  return 0;
}
