// What AKV_LAUNCH of kernels/cuda/launch.h becomes on the shim.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>
#include <cuda_shim_block.h>

namespace cuda_shim {

// Checks the launch and puts it into the stream: run(closure) is the kernel's body for one thread.
// The error is the launch's own, kept for cudaGetLastError too.
cudaError_t enqueue_kernel(const char* name, const void* function, dim3 grid, dim3 block,
                           size_t shared_bytes, cudaStream_t stream,
                           std::shared_ptr<const void> closure, void (*run)(const void* closure));

template <class... Params, class... Args>
cudaError_t launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel takes all of its arguments");
  struct Closure {
    void (*kernel)(Params...);
    std::tuple<std::decay_t<Params>...> args;
  };
  static_assert((std::is_trivially_copyable_v<std::decay_t<Params>> && ...),
                "kernel arguments are copied as bytes");
  auto closure = std::make_shared<const Closure>(
      Closure{kernel, std::tuple<std::decay_t<Params>...>(std::forward<Args>(args)...)});
  return enqueue_kernel(name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
                        stream, closure, [](const void* p) {
                          const auto* c = static_cast<const Closure*>(p);
                          std::apply(c->kernel, c->args);
                        });
}

}  // namespace cuda_shim
