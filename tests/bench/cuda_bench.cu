#include "tests/bench/cuda_bench.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "kernels/cuda/launch.h"

namespace akv::bench {
namespace {

// About normal: the sum of four uniform numbers.
__device__ float noise(uint64_t i) {
  uint64_t z = i * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  float sum = 0.0f;
  for (int part = 0; part < 4; ++part) sum += static_cast<float>((z >> (16 * part)) & 0xffff);
  return (sum / 65536.0f - 2.0f) * 1.7f;
}

__global__ void fill_kernel(uint16_t* out, int64_t count, uint64_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const auto salted = seed * 1000003 + static_cast<uint64_t>(i);
  out[i] = static_cast<uint16_t>(__float_as_uint(noise(salted)) >> 16);
}

// An own stream's events.
class Clock {
 public:
  explicit Clock(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&begin_), "an event");
    check(cudaEventCreate(&end_), "an event");
  }
  ~Clock() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  double seconds(const std::function<void()>& work) {
    check(cudaEventRecord(begin_, stream_), "an event");
    work();
    check(cudaGetLastError(), "a launch");
    check(cudaEventRecord(end_, stream_), "an event");
    check(cudaEventSynchronize(end_), "the work");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "an event");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Null where the work cannot be captured; then it runs as plain launches, and its own error shows.
cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& work) {
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  bool whole = true;
  try {
    work();
  } catch (const std::exception&) {
    whole = false;
  }
  cudaGraph_t graph = nullptr;
  whole = cudaStreamEndCapture(stream, &graph) == cudaSuccess && whole && graph != nullptr;
  cudaGraphExec_t step = nullptr;
  if (whole && cudaGraphInstantiate(&step, graph, 0) != cudaSuccess) step = nullptr;
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();  // of a refused capture
  return step;
}

// As a JSON string's inside; libraries' errors can be pages long.
std::string escaped(const std::string& text) {
  constexpr size_t kMost = 400;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

void print_number(const char* name, double value) {
  if (!std::isnan(value)) std::printf(",\"%s\":%.6g", name, value);
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // this error was seen; it must not be the next call's
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

DeviceMemory::~DeviceMemory() {
  for (void* piece : pieces_) (void)cudaFree(piece);
}

void* DeviceMemory::allocate_bytes(size_t bytes) {
  void* p = nullptr;
  // Kernels may read to the end of the 16 bytes that enclose what is theirs.
  check(cudaMalloc(&p, bytes + 64), "device memory");
  pieces_.push_back(p);
  return p;
}

void fill_random(bf16* out, int64_t count, uint64_t seed) {
  AKV_LAUNCH(fill_kernel, static_cast<unsigned>((count + 255) / 256), 256, 0, DeviceStream{},
             reinterpret_cast<uint16_t*>(out), count, seed);
  check(cudaGetLastError(), "random numbers");
  check(cudaDeviceSynchronize(), "random numbers");
}

double relative_l2(const bf16* a, const bf16* b, size_t count) {
  std::vector<bf16> x(count), y(count);
  check(cudaMemcpy(x.data(), a, count * sizeof(bf16), cudaMemcpyDeviceToHost), "a result");
  check(cudaMemcpy(y.data(), b, count * sizeof(bf16), cudaMemcpyDeviceToHost), "a result");
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    const double p = static_cast<double>(to_float(x[i])), q = static_cast<double>(to_float(y[i]));
    difference += (p - q) * (p - q);
    norm += q * q;
  }
  return std::sqrt(difference / norm);
}

Roofs device_roofs() {
  const auto attribute = [](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, 0), "the device's figures");
    return static_cast<double>(value);
  };
  Roofs roofs;
  roofs.hbm_bytes_per_s =
      2e3 * attribute(cudaDevAttrMemoryClockRate) * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  const auto major = static_cast<int>(attribute(cudaDevAttrComputeCapabilityMajor));
  const auto minor = static_cast<int>(attribute(cudaDevAttrComputeCapabilityMinor));
  double flop_per_clock = 0;  // of a multiprocessor
  if (major == 8) flop_per_clock = minor == 0 ? 2048 : 1024;
  if (major == 9) flop_per_clock = 4096;
  roofs.bf16_flop_per_s = 1e3 * flop_per_clock * attribute(cudaDevAttrClockRate) *
                          attribute(cudaDevAttrMultiProcessorCount);
  return roofs;
}

double seconds_per_call(cudaStream_t stream, int calls, int rounds,
                        const std::function<void(int)>& enqueue) {
  const auto all = [&] {
    for (int i = 0; i < calls; ++i) enqueue(i);
  };
  // What was uploaded is there for all streams.
  check(cudaDeviceSynchronize(), "the device");
  // Outside a capture first: libraries load their kernels at their first use.
  enqueue(0);
  check(cudaStreamSynchronize(stream), "the first call");
  cudaGraphExec_t step = capture(stream, all);
  std::vector<double> times;
  try {
    Clock clock(stream);
    for (int i = -1; i < rounds; ++i) {
      const double seconds = clock.seconds([&] {
        if (step == nullptr) return all();
        check(cudaGraphLaunch(step, stream), "a graph");
      });
      if (i >= 0) times.push_back(seconds);
    }
  } catch (...) {
    if (step != nullptr) (void)cudaGraphExecDestroy(step);
    throw;
  }
  if (step != nullptr) (void)cudaGraphExecDestroy(step);
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)] / calls;
}

void Report::figure(const Figure& f) const {
  std::printf(
      "{\"bench\":\"%s\",\"config\":\"%s\",\"metric\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"",
      bench_.c_str(), escaped(f.config).c_str(), escaped(f.metric).c_str(), f.value, f.unit);
  print_number("roof_share", f.roof_share);
  print_number("reach", f.reach);
  print_number("aim", f.aim);
  if (!std::isnan(f.reach)) {
    const bool reached = f.lower_is_better ? f.value <= f.reach : f.value >= f.reach;
    std::printf(",\"reached\":%s", reached ? "true" : "false");
  }
  std::printf(",\"measured\":%s", f.computed ? "false" : "true");
  if (!f.note.empty()) std::printf(",\"note\":\"%s\"", escaped(f.note).c_str());
  std::printf("}\n");
  std::fflush(stdout);
}

void Report::skipped(const std::string& why) const {
  std::printf("{\"bench\":\"%s\",\"skipped\":\"%s\"}\n", bench_.c_str(), escaped(why).c_str());
}

void Report::missing(const std::string& config, const std::string& metric,
                     const std::string& why) const {
  std::printf("{\"bench\":\"%s\",\"config\":\"%s\",\"metric\":\"%s\",\"missing\":\"%s\"}\n",
              bench_.c_str(), escaped(config).c_str(), escaped(metric).c_str(),
              escaped(why).c_str());
  std::fflush(stdout);
}

bool Report::attempt(const std::string& config, const std::string& metric,
                     const std::function<void()>& part) {
  try {
    part();
    return true;
  } catch (const std::exception& e) {
    failed_ = true;
    std::printf("{\"bench\":\"%s\",\"config\":\"%s\",\"metric\":\"%s\",\"error\":\"%s\"}\n",
                bench_.c_str(), escaped(config).c_str(), escaped(metric).c_str(),
                escaped(e.what()).c_str());
    std::fflush(stdout);
    return false;
  }
}

void report_bandwidth(Report& report, const Roofs& roofs, cudaStream_t stream, size_t bytes) {
  report.figure({.config = "device",
                 .metric = "HBM by its clock",
                 .value = roofs.hbm_bytes_per_s * 1e-9,
                 .unit = "GB/s"});
  report.attempt("device", "copy rate, both ways", [&] {
    DeviceMemory memory;
    char* from = memory.allocate<char>(bytes);
    char* to = memory.allocate<char>(bytes);
    const double seconds = seconds_per_call(stream, 1, 5, [&](int) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "a copy");
    });
    const double rate = 2.0 * static_cast<double>(bytes) / seconds;
    report.figure({.config = "device",
                   .metric = "copy rate, both ways",
                   .value = rate * 1e-9,
                   .unit = "GB/s",
                   .roof_share = rate / roofs.hbm_bytes_per_s});
  });
}

std::string no_device() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return devices == 0 ? "no device" : "";
}

std::string in_k(int64_t tokens) {
  return tokens % 1024 == 0 ? std::to_string(tokens / 1024) + "K" : std::to_string(tokens);
}

std::vector<int64_t> lengths(std::vector<int64_t> all, int64_t most) {
  if (most < all.front()) return {most};
  std::erase_if(all, [&](int64_t tokens) { return tokens > most; });
  return all;
}

}  // namespace akv::bench
