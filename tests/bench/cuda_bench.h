// What the benchmarks on a GPU share: errors as exceptions, memory that ends with its scope, a
// clock, the device's roofs, and a JSON line per figure. Each figure stands for itself: one that
// fails becomes a line with its error, and the next one runs.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace akv::bench {

// Throws std::runtime_error where a call failed.
void check(cudaError_t error, const char* what);

// Owner of several pieces of device memory, aligned to 256 bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  template <class T>
  T* allocate(size_t count) {
    return static_cast<T*>(allocate_bytes(count * sizeof(T)));
  }
  template <class T>
  T* upload(const T* values, size_t count) {
    T* p = allocate<T>(count);
    check(cudaMemcpy(p, values, count * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
    return p;
  }

 private:
  void* allocate_bytes(size_t bytes);
  std::vector<void*> pieces_;
};

// `count` bf16 of unit variance by a seeded hash, enqueued on the default stream.
void fill_random(bf16* out, int64_t count, uint64_t seed);

// |a - b| / |b| of `count` bf16 on the device.
double relative_l2(const bf16* a, const bf16* b, size_t count);

// What the device can do by its clocks and widths; 0 where it is not known.
struct Roofs {
  double hbm_bytes_per_s = 0;
  double bf16_flop_per_s = 0;  // dense, tensor cores
};
Roofs device_roofs();

// Seconds of one call: the median of `rounds` (after a warm-up) of `calls` calls each. `enqueue`
// gets 0 .. calls - 1. As one CUDA graph where the calls can be captured.
double seconds_per_call(cudaStream_t stream, int calls, int rounds,
                        const std::function<void(int)>& enqueue);

// One JSON line. NaN where something does not apply.
struct Figure {
  std::string config = {}, metric = {};
  double value = 0;
  const char* unit = "";
  double roof_share = NAN;  // of what the device could do, 1 at its roof
  double reach = NAN, aim = NAN;
  bool lower_is_better = false;
  bool computed = false;  // from bytes and shapes, not measured
  std::string note = {};
};

class Report {
 public:
  explicit Report(const char* bench) : bench_(bench) {}

  void figure(const Figure& figure) const;
  // The line of a benchmark that cannot run here, which is no failure.
  void skipped(const std::string& why) const;
  // A peer that is not on this machine, which is no failure either.
  void missing(const std::string& config, const std::string& metric, const std::string& why) const;
  // Runs `part`; an exception becomes a line. Returns whether it went through.
  bool attempt(const std::string& config, const std::string& metric,
               const std::function<void()>& part);
  int status() const { return failed_ ? 1 : 0; }  // for main

 private:
  std::string bench_;
  bool failed_ = false;
};

// Lines of the memory's bandwidth: by its clock, and of a copy of `bytes` on the device, with read
// and written bytes counted.
void report_bandwidth(Report& report, const Roofs& roofs, cudaStream_t stream, size_t bytes);

// Empty where a device works, else why none does.
std::string no_device();

// "32K" of 32768.
std::string in_k(int64_t tokens);

// Those of the lengths, in rising order, that are at most `most`; `most` itself where none is.
std::vector<int64_t> lengths(std::vector<int64_t> all, int64_t most);

}  // namespace akv::bench
