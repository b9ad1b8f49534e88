#include "common/device/host.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "tests/support/temp_dir.h"

namespace akv {
namespace {

// A made-up /proc and /sys/fs/cgroup.
class HostTest : public ::testing::Test {
 protected:
  HostTest() { dir_.write("proc/meminfo", "MemFree: 5 kB\nMemTotal:       1048576 kB\n"); }
  uint64_t memory() const {
    return memory_limit_bytes(dir_.path() + "/proc", dir_.path() + "/cgroup");
  }
  int cpus() const { return cpu_count(dir_.path() + "/proc", dir_.path() + "/cgroup"); }
  testing::TempDir dir_;
};

TEST_F(HostTest, WithoutGroupsTheMachineIsTheLimit) { EXPECT_EQ(memory(), 1ull << 30); }

TEST_F(HostTest, TheTightestGroupOfTheV2PathCounts) {
  dir_.write("proc/self/cgroup", "0::/pods/a\n");
  dir_.write("cgroup/pods/a/memory.max", "max\n");
  dir_.write("cgroup/pods/memory.max", "268435456\n");
  dir_.write("cgroup/memory.max", "536870912\n");
  EXPECT_EQ(memory(), 256ull << 20);
}

TEST_F(HostTest, AContainerThatSeesItsGroupAsRoot) {
  dir_.write("proc/self/cgroup", "0::/../not/visible\n");
  dir_.write("cgroup/memory.max", "134217728\n");
  EXPECT_EQ(memory(), 128ull << 20);
}

TEST_F(HostTest, V1MemoryController) {
  dir_.write("proc/self/cgroup", "4:cpu,cpuacct:/x\n9:memory:/job\n0::/\n");
  dir_.write("cgroup/memory/job/memory.limit_in_bytes", "67108864\n");
  dir_.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory(), 64ull << 20);
}

TEST_F(HostTest, CpuQuotaIsRoundedUp) {
  const int affinity = cpu_count(dir_.path() + "/none", dir_.path() + "/none");
  dir_.write("proc/self/cgroup", "0::/a\n");
  dir_.write("cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), affinity);
  dir_.write("cgroup/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpus(), 1);
  dir_.write("cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpus(), std::min(affinity, 2));
}

TEST_F(HostTest, V1CpuQuota) {
  dir_.write("proc/self/cgroup", "4:cpu,cpuacct:/x\n");
  dir_.write("cgroup/cpu/x/cpu.cfs_quota_us", "100000\n");
  dir_.write("cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST(Host, AffinityBoundsTheCpus) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int narrowed = 0;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all)) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    sched_setaffinity(0, sizeof(one), &one);
    narrowed = cpu_count();
  }).join();
  EXPECT_EQ(narrowed, 1);
}

TEST(Host, ThisProcessIsResident) {
  EXPECT_GT(resident_memory_bytes(), 1u << 20);
  EXPECT_LT(resident_memory_bytes(), memory_limit_bytes());
}

}  // namespace
}  // namespace akv
