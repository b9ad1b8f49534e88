// Where the pages of suffixes come from: host memory, or that of a device.
#pragma once

#include <cstdint>

namespace akv::decode {

// Used by one thread (the engine's).
class PageMemory {
 public:
  virtual ~PageMemory() = default;
  // At least `bytes`, aligned to 256; null when there is none left. Contents are not cleared.
  virtual void* allocate(uint64_t bytes) = 0;
  // `page` and `bytes` of allocate().
  virtual void free(void* page, uint64_t bytes) = 0;
};

// Pages straight from the system, so that a session's end really returns its memory.
class HostPages : public PageMemory {
 public:
  void* allocate(uint64_t bytes) override;
  void free(void* page, uint64_t bytes) override;
  // One for suffixes without an engine (tools, tests); it holds nothing.
  static HostPages& shared();
};

}  // namespace akv::decode
