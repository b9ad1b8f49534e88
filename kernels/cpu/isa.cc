#include "kernels/isa.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace akv {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kPortable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512cd")) {
    return Isa::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
#else
  return Isa::kPortable;
#endif
}

struct Choice {
  Isa isa = detect();
  std::string message;

  Choice() {
    const char* asked = std::getenv("AKV_ISA");
    if (asked == nullptr || *asked == '\0') return;
    for (Isa level : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
      if (std::strcmp(asked, isa_name(level)) != 0) continue;
      if (level <= isa) {
        isa = level;
      } else {
        message =
            std::string("AKV_ISA=") + asked + " is not supported here; using " + isa_name(isa);
      }
      return;
    }
    message = std::string("AKV_ISA=") + asked +
              " is not one of portable, avx2, avx512, avx512bf16; using " + isa_name(isa);
  }
};

const Choice& choice() {
  static const Choice chosen;
  return chosen;
}

// The level a ScopedIsa forces, or -1.
std::atomic<int> forced{-1};

bool detect_amx() {
#if defined(__x86_64__) && defined(__linux__)
  const char* wanted = std::getenv("AKV_AMX");
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return false;
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  const bool bf16_tiles = (edx >> 22 & 1u) != 0 && (edx >> 24 & 1u) != 0;
  if (!bf16_tiles) return false;
  // Tile state is large, so Linux hands it out per process, on request.
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "?";
}

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

bool isa_supported(Isa isa) { return isa <= best_isa(); }

bool amx_available() {
  static const bool available = best_isa() == Isa::kAvx512Bf16 && detect_amx();
  return available && active_isa() == Isa::kAvx512Bf16;
}

Isa active_isa() {
  const int level = forced.load(std::memory_order_relaxed);
  return level < 0 ? choice().isa : static_cast<Isa>(level);
}

const char* isa_message() { return choice().message.c_str(); }

ScopedIsa::ScopedIsa(Isa isa) : before_(forced.exchange(static_cast<int>(isa))) {}

ScopedIsa::~ScopedIsa() { forced.store(before_); }

}  // namespace akv
