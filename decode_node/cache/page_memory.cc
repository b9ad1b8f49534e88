#include "decode_node/cache/page_memory.h"

#include <sys/mman.h>

namespace akv::decode {

void* HostPages::allocate(uint64_t bytes) {
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : page;
}

void HostPages::free(void* page, uint64_t bytes) { munmap(page, bytes); }

HostPages& HostPages::shared() {
  static HostPages pages;
  return pages;
}

}  // namespace akv::decode
