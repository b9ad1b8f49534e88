// Device memory that other processes and network cards may read: what transports send from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/result.h"
#include "common/device/device.h"
#include "common/device/memory.h"

namespace akv {

// Blocks outside of any stream-ordered pool (whose memory CUDA does not export), up to a limit.
// Allocating and freeing them waits for the device, and a transport keeps what it mapped: a block
// that comes back is kept for the next one of its size. Any thread.
class ExportPool : public std::enable_shared_from_this<ExportPool> {
 public:
  static std::shared_ptr<ExportPool> create(const Device& device, uint64_t limit_bytes) {
    return std::shared_ptr<ExportPool>(new ExportPool(device, limit_bytes));
  }

  // At least `bytes`, aligned to 256; comes back when its last owner lets go, which must be after
  // whatever reads it. kResourceExhausted: the limit, or the device's memory.
  Result<std::shared_ptr<std::byte>> allocate(uint64_t bytes);

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t held_bytes() const;  // in use and kept

 private:
  ExportPool(const Device& device, uint64_t limit_bytes)
      : device_(device), limit_bytes_(limit_bytes) {}
  Result<DeviceBuffer> take(uint64_t size);
  void drop_kept(uint64_t needed_bytes);

  const Device device_;
  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  uint64_t held_bytes_ = 0;
  std::map<uint64_t, std::vector<DeviceBuffer>> kept_;  // by size
};

}  // namespace akv
