#include "common/base/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace akv {
namespace {

TEST(WorkerPool, RunsEveryTaskExactlyOnceOverManyJobs) {
  WorkerPool pool(4);
  for (int job = 0; job < 2000; ++job) {
    std::vector<int> hits(static_cast<size_t>(1 + job % 37), 0);
    pool.run(static_cast<int>(hits.size()), [&](int task, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, 4);
      ++hits[static_cast<size_t>(task)];
    });
    for (int count : hits) ASSERT_EQ(count, 1);
  }
}

TEST(WorkerPool, OneThreadRunsInOrder) {
  WorkerPool pool(1);
  std::vector<int> order;
  pool.run(5, [&](int task, int) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace akv
