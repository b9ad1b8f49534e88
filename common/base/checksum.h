// Checksums of what crosses a process border.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace akv {

// XXH3-64 of the bytes (seed 0).
uint64_t xxh3_64(std::span<const std::byte> bytes);

using Sha256Digest = std::array<uint8_t, 32>;

// Incremental SHA-256. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(const void* data, size_t size);
  // REQUIRES: called once; the object is spent afterwards.
  Sha256Digest finish();

 private:
  void* context_;
};

std::string to_hex(std::span<const uint8_t> bytes);

}  // namespace akv
