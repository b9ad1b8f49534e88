// AKV_CHECK: for our own bugs only, never for input. Live in every build type.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace akv {
[[noreturn]] inline void check_failed(const char* expr, const char* file, int line) {
  std::fprintf(stderr, "CHECK failed: %s at %s:%d\n", expr, file, line);
  std::abort();
}
}  // namespace akv

#define AKV_CHECK(expr) \
  ((expr) ? static_cast<void>(0) : ::akv::check_failed(#expr, __FILE__, __LINE__))
