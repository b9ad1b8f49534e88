// codec_check FILE.safetensors...: checks the codec against files of the format of golden/codec.
// One line per file, profile and quantity with the largest deviation and ok or FAIL; exit status 1
// on any FAIL.
#include <cstdio>
#include <string>
#include <thread>

#include "common/base/worker_pool.h"
#include "kernels/isa.h"
#include "kernels/parallel.h"
#include "tests/kv/codec_compare.h"
#include "tests/kv/golden_case.h"

int main(int argc, char** argv) {
  if (argc < 2 || std::string(argv[1]) == "--help") {
    std::printf("usage: codec_check FILE.safetensors...\n");
    return argc < 2 ? 1 : 0;
  }
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  akv::WorkerPool pool(threads);
  const akv::Parallel parallel = akv::parallel_view(pool);
  std::fprintf(stderr, "codec_check: %s, %d threads\n", akv::isa_name(akv::active_isa()), threads);
  bool all_ok = true;
  for (int i = 1; i < argc; ++i) {
    const auto golden = akv::kv::testing::load_golden_case(argv[i]);
    if (!golden.ok()) {
      std::printf("%-32s %-7s %-15s %12s  FAIL  %s\n", argv[i], "-", "file", "-",
                  golden.error().message.c_str());
      all_ok = false;
      continue;
    }
    for (const auto& f : akv::kv::testing::compare_case(*golden, parallel)) {
      std::printf("%-32s %-7s %-15s %12.3e  %-4s  %s\n", golden->name.c_str(), f.profile.c_str(),
                  f.quantity.c_str(), f.deviation, f.ok ? "ok" : "FAIL", f.note.c_str());
      all_ok &= f.ok;
    }
    std::fflush(stdout);
  }
  return all_ok ? 0 : 1;
}
