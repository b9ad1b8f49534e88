// What of the host this process may use: control groups and affinity come before the machine.
#pragma once

#include <cstdint>
#include <string>

namespace akv {

// The least of the machine's memory and the limits of the control groups (v2 or v1) that hold this
// process. Never 0. The roots are for tests.
uint64_t memory_limit_bytes(const std::string& proc = "/proc",
                            const std::string& cgroup = "/sys/fs/cgroup");

// CPUs that this process may run on: its affinity mask, and the control group's CPU quota rounded
// up. At least 1.
int cpu_count(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

// Resident set of this process; 0 where it cannot be read.
uint64_t resident_memory_bytes();

}  // namespace akv
