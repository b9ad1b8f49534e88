#include "tests/support/cuda_shim/shared_memory.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "tests/support/cuda_shim/include/cuda_shim_block.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// Its symbol and its address tell where this module's thread-local variables lie.
extern "C" {
__attribute__((used)) thread_local char cuda_shim_tls_anchor = 1;
}

namespace cuda_shim {
namespace {

// A static __shared__ variable: a thread-local one inside a function, at an offset from the anchor.
struct StaticVariable {
  ptrdiff_t offset;
  size_t bytes;
};

std::vector<char> read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A thread-local variable local to a function of a kernel's namespace. __shared__ has no other
// mark: a section of its own would do, but GCC 12 ignores section attributes in templates.
bool is_shared_variable(std::string_view name) {
  return name.starts_with("_ZZN3akv7kernels4cuda") || name.starts_with("_ZZN14cuda_shim_test");
}

// Reads the symbol table of the running program; it must not be stripped.
std::vector<StaticVariable> find_static_variables() {
  const std::vector<char> file = read_file("/proc/self/exe");
  std::vector<StaticVariable> found;
  ptrdiff_t anchor = -1;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = file.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data() + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(ElfW(Sym)); ++s) {
      if (ELF64_ST_TYPE(symbols[s].st_info) != STT_TLS) continue;
      const std::string_view name = names + symbols[s].st_name;
      const auto offset = static_cast<ptrdiff_t>(symbols[s].st_value);
      if (name == "cuda_shim_tls_anchor") anchor = offset;
      if (is_shared_variable(name)) found.push_back({offset, symbols[s].st_size});
    }
  }
  if (anchor < 0) {
    std::fputs("cuda_shim: the program has no symbol table; do not strip tests\n", stderr);
    std::abort();
  }
  for (StaticVariable& variable : found) variable.offset -= anchor;
  return found;
}

}  // namespace

SharedArena::~SharedArena() {
#if defined(__SANITIZE_ADDRESS__)
  if (memory_ != nullptr) __asan_unpoison_memory_region(memory_, capacity_);
#endif
  std::free(memory_);
}

void* SharedArena::begin_block(size_t bytes) {
  static const std::vector<StaticVariable> variables = find_static_variables();
  for (const StaticVariable& variable : variables) {
    std::memset(&cuda_shim_tls_anchor + variable.offset, kPoison, variable.bytes);
  }
  constexpr size_t kAlign = 1024;
  constexpr size_t kCapacity = size_t{256} << 10;  // more than any device has
  if (memory_ == nullptr) {
    memory_ = static_cast<unsigned char*>(std::aligned_alloc(kAlign, kCapacity));
    capacity_ = kCapacity;
  }
  if (bytes > kCapacity) return nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory_, capacity_);
  std::memset(memory_, kPoison, bytes);
  __asan_poison_memory_region(memory_ + bytes, capacity_ - bytes);
#else
  std::memset(memory_, kPoison, bytes);
#endif
  return memory_;
}

}  // namespace cuda_shim
