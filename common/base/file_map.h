// A file's bytes in memory, mapped at first, moved to huge pages when speed is worth their memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"

namespace akv {

// Owns the mapping. bytes() is thread-safe and stays at its address for the owner's life; a file
// that another process truncates while it is mapped raises SIGBUS, as for every mmap reader.
class FileMap {
 public:
  // Maps `path` privately and read-only. kNotFound or kIo (open, map), kInvalidArgument (empty, no
  // regular file).
  static Result<FileMap> open(const std::string& path);
  FileMap() = default;
  ~FileMap();
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Replaces the file's pages by a copy of them in anonymous memory on huge pages (2 MiB), piece by
  // piece and in place: addresses and bytes stay, and readers may go on meanwhile. Pages of a file
  // are 4 KiB each, and in a virtual machine the walk to each of them costs a reader of all weights
  // up to half of the memory's rate (kernels/README.md). Returns the bytes moved: all but the ends
  // that are no whole huge page, fewer where `stop` came true. kUnsupported: the system has no huge
  // pages to give; kResourceExhausted: out of memory. What was moved before an error stays moved,
  // the rest is the file's as before (the process ends if the kernel cannot give even that back).
  // One caller at a time.
  Result<uint64_t> move_to_huge_pages(const std::atomic<bool>& stop) const;

 private:
  std::byte* data_ = nullptr;  // aligned to a huge page, and all pages of the last one
  size_t size_ = 0;
  int fd_ = -1;  // to map what a move could not replace
};

}  // namespace akv
