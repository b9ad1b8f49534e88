// The kernels' view of a worker pool: an abstract parallel_for, passed as context.
#pragma once

namespace akv {

// run(tasks, fn): fn(task, worker) for every task in [0, tasks), worker in [0, workers); returns
// when all are done. A view of a pool that outlives it; one caller at a time; does not nest.
struct Parallel {
  void* pool = nullptr;
  int workers = 1;
  void (*invoke)(void* pool, int tasks, void (*fn)(void* arg, int task, int worker),
                 void* arg) = nullptr;

  template <class F>
  void run(int tasks, F&& fn) const {
    if (invoke == nullptr) {
      for (int task = 0; task < tasks; ++task) fn(task, 0);
      return;
    }
    auto* target = &fn;
    invoke(
        pool, tasks,
        [](void* arg, int task, int worker) {
          (**static_cast<decltype(target)*>(arg))(task, worker);
        },
        &target);
  }
};

// Serial execution on the calling thread: tests, small work.
inline Parallel serial() { return Parallel{}; }

// A view of any pool with workers() and run(tasks, fn, arg), e.g. akv::WorkerPool.
template <class Pool>
Parallel parallel_view(Pool& pool) {
  return Parallel{&pool, pool.workers(),
                  [](void* p, int tasks, void (*fn)(void*, int, int), void* arg) {
                    static_cast<Pool*>(p)->run(tasks, fn, arg);
                  }};
}

}  // namespace akv
