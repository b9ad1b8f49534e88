#include "tests/support/cuda_shim/fiber.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuda_shim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = size_t{256} << 10;
#else
constexpr size_t kStackBytes = size_t{128} << 10;
#endif
constexpr size_t kGuardBytes = 4096;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

#if defined(__x86_64__)

// Saves what the ABI says a callee keeps, and the stack pointer; takes both from the other side.
extern "C" void cuda_shim_switch(void** from, void* to);
asm(R"(.text
.p2align 4
.type cuda_shim_switch,@function
cuda_shim_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size cuda_shim_switch, .-cuda_shim_switch
)");

namespace {
void set_start(Fiber& fiber, void* top, void (*entry)()) {
  void** sp = static_cast<void**>(top);
  *--sp = nullptr;  // no return address above the entry: a debugger stops here
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  fiber.sp = sp;
}
void jump(Fiber& from, Fiber& to) { cuda_shim_switch(&from.sp, to.sp); }
}  // namespace

#else

namespace {
// Allocated once for each fiber, for the life of the process.
ucontext_t* context_of(Fiber& fiber) {
  if (fiber.sp == nullptr) fiber.sp = std::malloc(sizeof(ucontext_t));
  return static_cast<ucontext_t*>(fiber.sp);
}
void set_start(Fiber& fiber, void* top, void (*entry)()) {
  ucontext_t* context = context_of(fiber);
  getcontext(context);
  context->uc_stack.ss_sp = fiber.stack;
  context->uc_stack.ss_size = static_cast<size_t>(static_cast<char*>(top) - fiber.stack);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
void jump(Fiber& from, Fiber& to) { swapcontext(context_of(from), context_of(to)); }
}  // namespace

#endif

FiberPool::~FiberPool() {
#if defined(__SANITIZE_THREAD__)
  for (auto& fiber : fibers_) __tsan_destroy_fiber(fiber->tsan);
#endif
  for (const Arena& arena : arenas_) munmap(arena.base, arena.bytes);
}

void FiberPool::reserve(size_t count) {
  if (count <= fibers_.size()) return;
  const size_t more = count - fibers_.size();
  const size_t stride = kStackBytes + kGuardBytes;
  Arena arena{nullptr, more * stride};
  arena.base = mmap(nullptr, arena.bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena.base == MAP_FAILED) die("mmap of fiber stacks");
  arenas_.push_back(arena);
  for (size_t i = 0; i < more; ++i) {
    char* guard = static_cast<char*>(arena.base) + i * stride;
    if (mprotect(guard, kGuardBytes, PROT_NONE) != 0) die("mprotect of a fiber's guard page");
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = guard + kGuardBytes;
    fiber->stack_bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
    fiber->tsan = __tsan_create_fiber(0);
#endif
    fibers_.push_back(std::move(fiber));
  }
}

void prepare_fiber(Fiber& fiber, void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
  // What an earlier run left poisoned is another function's frame now.
  __asan_unpoison_memory_region(fiber.stack, fiber.stack_bytes);
#endif
  fiber.asan_frame = nullptr;
  // Tops of neighbours lie in different cache sets.
  const size_t index = reinterpret_cast<uintptr_t>(fiber.stack) / (kStackBytes + kGuardBytes);
  set_start(fiber, fiber.stack + fiber.stack_bytes - 64 - (index % 16) * 192, entry);
}

void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.asan_frame, to.stack, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
  jump(from, to);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.asan_frame, nullptr, nullptr);
#endif
}

void fiber_started() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void adopt_thread(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) die("pthread_getattr_np");
  void* base = nullptr;
  pthread_attr_getstack(&attributes, &base, &fiber.stack_bytes);
  pthread_attr_destroy(&attributes);
  fiber.stack = static_cast<char*>(base);
#endif
#if defined(__SANITIZE_THREAD__)
  fiber.tsan = __tsan_get_current_fiber();
#endif
  static_cast<void>(fiber);
}

}  // namespace cuda_shim
