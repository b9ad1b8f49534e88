#include "common/base/file_map.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "common/base/check.h"

namespace akv {
namespace {

constexpr size_t kHugePage = 2 << 20;
// What is held twice at a time, and how long a stop may have to wait.
constexpr size_t kPiece = 32 * kHugePage;

Error io_error(const std::string& path, const char* what) {
  const int number = errno;
  const Code code = number == ENOENT ? Code::kNotFound : Code::kIo;
  return make_error(code, fmt::format("{} {}: {}", what, path, std::strerror(number)), path);
}

size_t whole_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Address space of whole_pages(size), aligned to huge pages; null where there is none.
std::byte* reserve(size_t size, int protection) {
  const size_t kept = whole_pages(size), asked = kept + kHugePage;
  void* p = ::mmap(nullptr, asked, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* room = static_cast<std::byte*>(p);
  const size_t before =
      whole_pages(reinterpret_cast<uintptr_t>(p)) - reinterpret_cast<uintptr_t>(p);
  if (before > 0) ::munmap(room, before);
  ::munmap(room + before + kept, kHugePage - before);
  return room + before;
}

bool huge_pages_given() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return !words.empty() && words.find("[never]") == std::string::npos;
}

// mremap by the kernel's own entry: libraries that watch memory (UCX) put theirs before the C
// library's, and old ones lose the new address. True if the pages are at `to`.
bool move_pages(std::byte* pages, size_t size, std::byte* to) {
  const long at = ::syscall(SYS_mremap, pages, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to);
  return at == static_cast<long>(reinterpret_cast<intptr_t>(to));
}

// Copies [from, from + size), the file's bytes at `offset`, to huge pages and puts them in its
// place. Both ends are aligned.
Status move_piece(std::byte* from, size_t size, int fd, size_t offset) {
  std::byte* copy = reserve(size, PROT_READ | PROT_WRITE);
  if (copy == nullptr) return make_error(Code::kResourceExhausted, "no memory for huge pages");
  if (::madvise(copy, size, MADV_HUGEPAGE) != 0) {
    ::munmap(copy, size);
    return make_error(Code::kUnsupported, "the system gives no huge pages");
  }
  std::memcpy(copy, from, size);
  // One step for readers: the kernel holds the address space's lock from unmapping to moving.
  if (::mprotect(copy, size, PROT_READ) == 0 && move_pages(copy, size, from)) return {};
  const int number = errno;
  // The kernel may have unmapped the place before it failed.
  const void* back =
      ::mmap(from, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, static_cast<off_t>(offset));
  AKV_CHECK(back == from);
  ::munmap(copy, size);
  return make_error(Code::kResourceExhausted,
                    fmt::format("cannot move pages: {}", std::strerror(number)));
}

}  // namespace

Result<FileMap> FileMap::open(const std::string& path) {
  FileMap map;
  map.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (map.fd_ < 0) return io_error(path, "cannot open");
  struct stat info {};
  if (::fstat(map.fd_, &info) != 0) return io_error(path, "cannot stat");
  if (!S_ISREG(info.st_mode)) {
    return make_error(Code::kInvalidArgument, fmt::format("{} is no regular file", path), path);
  }
  map.size_ = static_cast<size_t>(info.st_size);
  if (map.size_ == 0) {
    return make_error(Code::kInvalidArgument, fmt::format("{} is empty", path), path);
  }
  map.data_ = reserve(map.size_, PROT_NONE);
  if (map.data_ == nullptr) return io_error(path, "cannot map");
  if (::mmap(map.data_, map.size_, PROT_READ, MAP_PRIVATE | MAP_FIXED, map.fd_, 0) == MAP_FAILED) {
    return io_error(path, "cannot map");
  }
  return map;
}

FileMap::~FileMap() {
  if (data_ != nullptr) ::munmap(data_, whole_pages(size_));
  if (fd_ >= 0) ::close(fd_);
}

FileMap::FileMap(FileMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

Result<uint64_t> FileMap::move_to_huge_pages(const std::atomic<bool>& stop) const {
  if (!huge_pages_given()) {
    return make_error(Code::kUnsupported, "transparent huge pages are switched off");
  }
  const size_t whole = size_ / kHugePage * kHugePage;
  uint64_t moved = 0;
  while (moved < whole && !stop) {
    const size_t size = std::min<size_t>(kPiece, whole - moved);
    AKV_RETURN_IF_ERROR(move_piece(data_ + moved, size, fd_, moved));
    moved += size;
  }
  return moved;
}

}  // namespace akv
