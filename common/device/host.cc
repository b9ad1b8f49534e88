#include "common/device/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace akv {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The number at the front of text; "max" and anything else is nothing.
std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// Path of this process in a control-group hierarchy: controller "" is v2's.
std::optional<std::string> group_path(const std::string& proc, std::string_view controller) {
  std::ifstream in(proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    if (controller.empty() && second == first + 1) return line.substr(second + 1);
    for (std::string name; std::getline(controllers, name, ',');) {
      if (!controller.empty() && name == controller) return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Calls visit with the folder of the group and of each group above it. A container often sees its
// own group as the root of the mount, so the root comes last in every case.
template <class Visit>
void for_each_group(const std::string& root, std::string path, const Visit& visit) {
  while (!path.empty() && path != "/") {
    visit(root + path);
    path.erase(path.rfind('/'));
  }
  visit(root);
}

uint64_t machine_memory_bytes(const std::string& proc) {
  std::ifstream in(proc + "/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("MemTotal:")) continue;
    const size_t digit = line.find_first_of("0123456789");
    if (digit == std::string::npos) break;
    if (const auto kib = parse_integer(std::string_view(line).substr(digit))) {
      return static_cast<uint64_t>(*kib) * 1024;
    }
  }
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int affinity_count() {
  // The mask may be wider than cpu_set_t on large machines.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus));
    const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool ok = sched_getaffinity(0, size, set) == 0;
    const int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok) return std::max(count, 1);
  }
  return 1;
}

int round_up_cpus(double quota, double period) {
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

}  // namespace

uint64_t memory_limit_bytes(const std::string& proc, const std::string& cgroup) {
  uint64_t limit = machine_memory_bytes(proc);
  const auto take = [&limit](const std::string& file) {
    const std::optional<int64_t> bytes = parse_integer(first_line(file));
    if (bytes && *bytes > 0) limit = std::min(limit, static_cast<uint64_t>(*bytes));
  };
  if (const auto path = group_path(proc, "")) {
    for_each_group(cgroup, *path, [&](const std::string& group) { take(group + "/memory.max"); });
  }
  if (const auto path = group_path(proc, "memory")) {
    for_each_group(cgroup + "/memory", *path,
                   [&](const std::string& group) { take(group + "/memory.limit_in_bytes"); });
  }
  return std::max<uint64_t>(limit, 1);
}

int cpu_count(const std::string& proc, const std::string& cgroup) {
  int cpus = affinity_count();
  if (const auto path = group_path(proc, "")) {
    for_each_group(cgroup, *path, [&](const std::string& group) {
      const std::string line = first_line(group + "/cpu.max");  // "QUOTA PERIOD" or "max PERIOD"
      const size_t space = line.find(' ');
      if (space == std::string::npos) return;
      const auto quota = parse_integer(line);
      const auto period = parse_integer(std::string_view(line).substr(space + 1));
      if (quota && period && *period > 0) {
        cpus = std::min(cpus, round_up_cpus(static_cast<double>(*quota), *period));
      }
    });
  }
  if (const auto path = group_path(proc, "cpu")) {
    for_each_group(cgroup + "/cpu", *path, [&](const std::string& group) {
      const auto quota = parse_integer(first_line(group + "/cpu.cfs_quota_us"));
      const auto period = parse_integer(first_line(group + "/cpu.cfs_period_us"));
      if (quota && period && *quota > 0 && *period > 0) {
        cpus = std::min(cpus, round_up_cpus(static_cast<double>(*quota), *period));
      }
    });
  }
  return cpus;
}

uint64_t resident_memory_bytes() {
  // statm: size resident shared ..., in pages.
  std::ifstream in("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  if (!(in >> size >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace akv
