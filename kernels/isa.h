// Which instruction set the kernels use: chosen once at start from what the CPU has.
#pragma once

namespace akv {

// In increasing order; each level includes the ones below. kAvx2 needs AVX2, FMA and F16C; kAvx512
// needs F, BW, DQ, VL and CD; kAvx512Bf16 adds AVX512_BF16. kPortable is the compiler's baseline.
enum class Isa { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

// "portable", "avx2", "avx512", "avx512bf16": the values of the environment's AKV_ISA.
const char* isa_name(Isa isa);

// The best level that this CPU (and its operating system) supports.
Isa best_isa();
bool isa_supported(Isa isa);

// True where the CPU has AMX tiles for bf16 and the system lets this process use them; the
// bf16 kernels of level kAvx512Bf16 then use them. AKV_AMX=0 turns it off.
bool amx_available();

// The level in use: AKV_ISA if set and supported, else the best supported one below it. Read once,
// at the first call; any thread.
Isa active_isa();

// What was asked for and not given, for the start-up log; empty if nothing was.
const char* isa_message();

// Forces a level for its life, for tests and benchmarks: not while a kernel runs on any thread.
// The level must be supported. oneDNN's own choice (f32 GEMM) is made once, at its first use.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int before_;
};

}  // namespace akv
