// Monotonic time. Durations that cross an interface carry their unit in their name.
#pragma once

#include <chrono>
#include <cstdint>

namespace akv {

using SteadyClock = std::chrono::steady_clock;
using TimePoint = SteadyClock::time_point;

inline double ms_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}
inline double ms_since(TimePoint from) { return ms_between(from, SteadyClock::now()); }
inline TimePoint after_ms(int64_t ms) { return SteadyClock::now() + std::chrono::milliseconds(ms); }

}  // namespace akv
