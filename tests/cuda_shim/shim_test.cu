// What the shim alone does: garbage where a device leaves things undefined, and clear failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "tests/cuda_shim/device_array.h"
#include "tests/support/cuda_shim/cuda_shim.h"

namespace cuda_shim_test {
namespace {

using namespace akv::kernels::cuda;  // NOLINT: the functions under test
using cuda_shim::Order;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kPoisonWord = static_cast<int>(0xCDCDCDCDu);
constexpr unsigned kAll = 0xffffffffu;
constexpr akv::DeviceStream kDefault{};

class Shim : public testing::Test {
 protected:
  void SetUp() override { order_ = cuda_shim::order(); }
  void TearDown() override {
    cuda_shim::set_order(order_);
    cuda_shim::reset();
  }
  Order order_;
};

template <int N>
__global__ void read_shared(int* out) {
  __shared__ int fixed[N];
  AKV_DYNAMIC_SHARED(int, dynamic);
  if (threadIdx.x == 0) {
    out[2 * blockIdx.x] = fixed[N - 1];
    out[2 * blockIdx.x + 1] = dynamic[N - 1];
    fixed[N - 1] = dynamic[N - 1] = 5;
  }
}

TEST_F(Shim, SharedMemoryIsPoisonInEveryBlock) {
  const DeviceArray<int> out(6);
  AKV_LAUNCH(read_shared<7>, 3, 32, 28, kDefault, out.data());
  EXPECT_EQ(out.read(), std::vector<int>(6, kPoisonWord));
}

TEST_F(Shim, DeviceMemoryIsPoison) {
  const DeviceArray<int> fresh(3);
  EXPECT_EQ(fresh.read(), std::vector<int>(3, kPoisonWord));
}

template <bool Wait>
__global__ void copy_through_shared(const int* x, int* out) {
  __shared__ __align__(16) int shared[128];
  cp_async<16>(shared + threadIdx.x * 4, x + threadIdx.x * 4);
  cp_async_commit();
  if constexpr (Wait) cp_async_wait<0>();
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = shared[127 - (threadIdx.x * 4 + i)];
}

TEST_F(Shim, ACopyThatNobodyWaitedForIsPoison) {
  std::vector<int> x(128);
  for (int i = 0; i < 128; ++i) x[static_cast<size_t>(i)] = i;
  const DeviceArray<int> in(x);
  const DeviceArray<int> out(128);
  AKV_LAUNCH(copy_through_shared<true>, 1, 32, 0, kDefault, in.data(), out.data());
  EXPECT_EQ(out.read(), std::vector<int>(x.rbegin(), x.rend()));
  AKV_LAUNCH(copy_through_shared<false>, 1, 32, 0, kDefault, in.data(), out.data());
  EXPECT_EQ(out.read(), std::vector<int>(128, kPoisonWord));
}

// Each lane passes a number to the next one through shared memory.
template <bool Sync>
__global__ void pass_on(int* out) {
  __shared__ int slot[32];
  const int lane = static_cast<int>(threadIdx.x);
  slot[lane] = lane;
  if constexpr (Sync) __syncwarp();
  out[lane] = slot[(lane + 1) % 32];
}

TEST_F(Shim, SomeOrderShowsAMissingBarrier) {
  const DeviceArray<int> out(32);
  std::vector<int> want(32);
  for (int i = 0; i < 32; ++i) want[static_cast<size_t>(i)] = (i + 1) % 32;
  const auto run = [&](Order order, bool sync) {
    cuda_shim::set_order(order);
    if (sync) {
      AKV_LAUNCH(pass_on<true>, 1, 32, 0, kDefault, out.data());
    } else {
      AKV_LAUNCH(pass_on<false>, 1, 32, 0, kDefault, out.data());
    }
    return out.read();
  };
  for (const Order order : {Order{Order::Kind::kForward, 0}, Order{Order::Kind::kReverse, 0},
                            Order{Order::Kind::kRandom, 1}, Order{Order::Kind::kRandom, 2}}) {
    EXPECT_EQ(run(order, true), want);
    EXPECT_NE(run(order, false), want);
  }
}

// Which thread adds itself first.
__global__ void race(int* out) {
  const int place = atomicAdd(&out[0], 1);
  out[1 + place] = static_cast<int>(threadIdx.x);
}

TEST_F(Shim, RandomOrdersDifferBySeedAndRepeat) {
  const auto run = [&](Order order) {
    cuda_shim::set_order(order);
    const DeviceArray<int> out(std::vector<int>(65));
    AKV_LAUNCH(race, 1, 64, 0, kDefault, out.data());
    return out.read();
  };
  const auto first = run({Order::Kind::kRandom, 1});
  EXPECT_EQ(first, run({Order::Kind::kRandom, 1}));
  EXPECT_NE(first, run({Order::Kind::kRandom, 2}));
  EXPECT_EQ(run({Order::Kind::kForward, 0})[1], 0);
  EXPECT_EQ(run({Order::Kind::kReverse, 0})[1], 63);
}

__global__ void half_at_barrier() {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __shfl_xor_sync(kAll, 1, 1);
  }
}

TEST_F(Shim, ABarrierThatNotAllReachIsADeadlock) {
  AKV_LAUNCH(half_at_barrier, 1, 64, 0, kDefault);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(cuda_shim::last_failure(),
              AllOf(HasSubstr("kernel half_at_barrier, block (0, 0, 0)"), HasSubstr("deadlock"),
                    HasSubstr("threads 0 to 31 (warp 0): waits at __syncthreads"),
                    HasSubstr("threads 40 to 63 (warp 1): waits at __shfl_xor_sync")));
  // As on a device, nothing works afterwards.
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 4), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
}

__global__ void different_operations() {
  if (threadIdx.x % 2 == 0) {
    __shfl_sync(kAll, 1, 0);
  } else {
    __ballot_sync(kAll, 1);
  }
}
__global__ void outside_own_mask() { __syncwarp(1u << ((threadIdx.x + 1) % 32)); }
__global__ void half_a_matrix(uint32_t* out) {
  __shared__ __align__(16) uint16_t rows[64];
  uint32_t r[1] = {0};
  if (threadIdx.x < 16) ldmatrix_x1(r, rows);
  out[0] = r[0];
}
__global__ void crooked_matrix() {
  __shared__ __align__(16) uint16_t rows[72];
  uint32_t r[1];
  ldmatrix_x1(r, rows + threadIdx.x % 2);
}
__global__ void crooked_copy(const int* x) {
  __shared__ __align__(16) int to[8];
  cp_async<16>(to + 1, x);
}
__global__ void different_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads_or(1);
  } else {
    __syncthreads_and(1);
  }
}

TEST_F(Shim, MisuseIsNamed) {
  const auto failure = [] {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    const std::string text = cuda_shim::last_failure();
    cuda_shim::reset();
    return text;
  };
  const DeviceArray<uint32_t> memory(8);
  AKV_LAUNCH(different_operations, 1, 32, 0, kDefault);
  EXPECT_THAT(failure(), HasSubstr("different warp operations"));
  AKV_LAUNCH(outside_own_mask, 1, 32, 0, kDefault);
  EXPECT_THAT(failure(), HasSubstr("missing in the mask"));
  AKV_LAUNCH(half_a_matrix, 1, 32, 0, kDefault, memory.data());
  EXPECT_THAT(failure(), HasSubstr("all lanes"));
  AKV_LAUNCH(crooked_matrix, 1, 32, 0, kDefault);
  EXPECT_THAT(failure(), HasSubstr("not aligned to 16"));
  AKV_LAUNCH(crooked_copy, 1, 1, 0, kDefault, reinterpret_cast<const int*>(memory.data()));
  EXPECT_THAT(failure(), HasSubstr("not aligned"));
  AKV_LAUNCH(different_barriers, 1, 64, 0, kDefault);
  EXPECT_THAT(failure(), HasSubstr("different kinds of block barrier"));
}

__global__ void read_from_nobody(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

TEST_F(Shim, ALaneThatDoesNotTakePartGivesPoison) {
  const DeviceArray<int> out(16);
  AKV_LAUNCH(read_from_nobody, 1, 32, 0, kDefault, out.data());
  EXPECT_EQ(out.read(), std::vector<int>(16, kPoisonWord));
}

__global__ void leave_early(int* out) {
  if (threadIdx.x % 3 == 0) return;
  __syncthreads();
  out[threadIdx.x] = static_cast<int>(__ballot_sync(kAll, 1));
}

TEST_F(Shim, ThreadsThatEndedAreNotWaitedFor) {
  const DeviceArray<int> out(32);
  AKV_LAUNCH(leave_early, 1, 32, 0, kDefault, out.data());
  EXPECT_EQ(out.read()[1], static_cast<int>(0xb6db6db6u));
}

TEST_F(Shim, LaunchesAreCheckedAsTheRuntimeChecksThem) {
  const DeviceArray<int> out(2);
  AKV_LAUNCH(race, 1, 1025, 0, kDefault, out.data());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  AKV_LAUNCH(race, 0, 32, 0, kDefault, out.data());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  AKV_LAUNCH(read_shared<3>, 1, 32, 49 << 10, kDefault, out.data());
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  AKV_SHARED_ATTRIBUTE(read_shared<3>, 64 << 10);
  AKV_LAUNCH(read_shared<3>, 1, 32, 49 << 10, kDefault, out.data());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  AKV_SHARED_ATTRIBUTE(read_shared<3>, 300 << 10);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(Shim, CopiesAreCheckedAgainstTheirAllocations) {
  const DeviceArray<int> device(4);
  int host[8] = {};
  EXPECT_EQ(cudaMemcpy(device.data(), host, 32, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device.data() + 1, host, 12, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device.data() + 1, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  cudaPointerAttributes attributes;
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, device.data() + 2), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST_F(Shim, PageableMemoryMayChangeAtOnce) {
  const DeviceArray<int> device(1);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int host = 3;
  ASSERT_EQ(cudaMemcpyAsync(device.data(), &host, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  host = 4;
  EXPECT_EQ(cuda_shim::pending_work(), 1u);
  int back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, device.data(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(back, 3);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Shim, TheDefaultStreamWaitsForBlockingOnes) {
  const DeviceArray<int> device(std::vector<int>{0});
  cudaStream_t blocking = nullptr;
  cudaStream_t free = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&free, cudaStreamNonBlocking), cudaSuccess);
  const DeviceArray<int> other(std::vector<int>{0});
  ASSERT_EQ(cudaMemsetAsync(device.data(), 1, 4, blocking), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(other.data(), 1, 4, free), cudaSuccess);
  EXPECT_EQ(device.read()[0], 0x01010101);
  EXPECT_EQ(cudaStreamQuery(free), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(free), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(free), cudaSuccess);
}

TEST_F(Shim, CapturesRefuseWhatADeviceRefuses) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  cudaGraph_t graph = nullptr;
  void* p = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  std::thread([&] {  // another thread may go on allocating
    EXPECT_EQ(cudaMalloc(&p, 4), cudaSuccess);
    EXPECT_EQ(cudaFree(p), cudaSuccess);
  })
      .join();
  EXPECT_EQ(cudaMalloc(&p, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  cudaStream_t side = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  const DeviceArray<int> memory(1);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side, event), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory.data(), 0, 4, side), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(side), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Shim, OsThreadsRunKernelsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      cudaStream_t stream = nullptr;
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      const DeviceArray<int> out(32);
      for (int round = 0; round < 20; ++round) {
        AKV_LAUNCH(pass_on<true>, 2, 32, 0, akv::DeviceStream{stream}, out.data());
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      }
      EXPECT_EQ(out.read()[31], 0);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cuda_shim_test
