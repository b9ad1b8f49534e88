// Stacks of a block's threads and the switch between them, made known to ASan and TSan.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace cuda_shim {

// One flow of control. The one that an OS thread starts with has no stack of ours.
struct Fiber {
  void* sp = nullptr;  // saved stack pointer while it does not run
  char* stack = nullptr;
  size_t stack_bytes = 0;
  void* asan_frame = nullptr;  // ASan's record of the stack while it does not run
  void* tsan = nullptr;        // TSan's fiber
};

// Fibers of one OS thread, with guard pages between their stacks. They are reused from block to
// block: an abandoned one (a failed kernel) is simply started again.
class FiberPool {
 public:
  FiberPool() = default;
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // At least `count` fibers.
  void reserve(size_t count);
  Fiber& operator[](size_t i) { return *fibers_[i]; }

 private:
  struct Arena {
    void* base = nullptr;
    size_t bytes = 0;
  };
  std::vector<Arena> arenas_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

// Makes `fiber` begin with entry() at the next switch to it. entry must not return.
void prepare_fiber(Fiber& fiber, void (*entry)());

// Leaves `from` and goes on in `to`. `last`: from will never run again without prepare_fiber.
void switch_fiber(Fiber& from, Fiber& to, bool last);

// First act of an entry function.
void fiber_started();

// Sets up `fiber` as the calling OS thread's own flow.
void adopt_thread(Fiber& fiber);

}  // namespace cuda_shim
