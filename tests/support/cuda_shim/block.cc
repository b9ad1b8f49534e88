#include "tests/support/cuda_shim/block.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "tests/support/cuda_shim/fiber.h"
#include "tests/support/cuda_shim/include/cuda_shim_block.h"
#include "tests/support/cuda_shim/shared_memory.h"

namespace cuda_shim {

bool g_preempt = false;

namespace {

Order g_order = order_from_environment();

// Lanes that met at one warp operation of one mask.
struct Meeting {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  WarpWork work = nullptr;
};

struct Warp {
  uint32_t live = 0;
  uint32_t ready = 0;
  uint32_t at_barrier[16] = {};  // lanes by barrier id
  int meetings = 0;
  Meeting meeting[kWarpLanes];
  void* lanes[kWarpLanes] = {};
};

struct Barrier {
  int arrived = 0;
  BarrierKind kind = BarrierKind::kPlain;
  int expected = 0;  // 0: all live threads
  int trues = 0;
  int result = 0;
};

// The schedule of one OS thread.
struct Engine {
  FiberPool fibers;
  Fiber host;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  uint32_t warps_ready = 0;  // bit w: warp w has ready lanes
  int live = 0;
  Barrier barriers[16];
  const Grid* grid = nullptr;
  Order order;
  uint64_t random = 0;
  std::string failure;
  SharedArena shared;
};

Engine& engine() {
  static thread_local Engine engine;
  return engine;
}

uint64_t next_random(Engine& e) {
  e.random ^= e.random << 13;
  e.random ^= e.random >> 7;
  e.random ^= e.random << 17;
  return e.random;
}

// The n-th set bit.
int nth_bit(uint32_t bits, int n) {
  for (; n > 0; --n) bits &= bits - 1;
  return std::countr_zero(bits);
}

int random_bit(Engine& e, uint32_t bits) {
  const auto count = static_cast<uint64_t>(std::popcount(bits));
  return nth_bit(bits, static_cast<int>((next_random(e) >> 20) % count));
}

// The set bit that follows `after` in the round.
int following(uint32_t bits, int after, bool reverse) {
  if (reverse) {
    const uint32_t below = bits & ((uint32_t{1} << after) - 1);
    return 31 - std::countl_zero(below != 0 ? below : bits);
  }
  const uint32_t above = after == 31 ? 0 : bits & (~uint32_t{0} << (after + 1));
  return std::countr_zero(above != 0 ? above : bits);
}

// The thread whose turn is next, or null where none can run. Threads of a warp go on until all of
// them wait, then the next warp does; in random order a warp may be left at any time.
Thread* pick(Engine& e, const Thread& current) {
  if (e.warps_ready == 0) return nullptr;
  const bool reverse = e.order.kind == Order::Kind::kReverse;
  int warp = current.warp;
  if (e.order.kind == Order::Kind::kRandom) {
    if (e.warps[warp].ready == 0 || (next_random(e) & 7) == 0) warp = random_bit(e, e.warps_ready);
    return &e.threads[warp * kWarpLanes + random_bit(e, e.warps[warp].ready)];
  }
  int after = current.lane;
  if (e.warps[warp].ready == 0) {
    warp = following(e.warps_ready, warp, reverse);
    after = reverse ? 0 : 31;
  }
  return &e.threads[warp * kWarpLanes + following(e.warps[warp].ready, after, reverse)];
}

// Whether random order takes the turn from a thread that could go on: often enough to mix threads,
// seldom enough to get somewhere.
bool preempts(Engine& e) { return g_preempt && (next_random(e) >> 32 & 3) == 0; }

void set_ready(Engine& e, int warp, uint32_t lanes) {
  Warp& w = e.warps[warp];
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    e.threads[warp * kWarpLanes + std::countr_zero(rest)].waits_for = nullptr;
  }
  w.ready |= lanes;
  if (w.ready != 0) e.warps_ready |= uint32_t{1} << warp;
}

void set_waiting(Engine& e, Thread& t, const char* what, uint32_t mask) {
  t.waits_for = what;
  t.waits_mask = mask;
  Warp& w = e.warps[t.warp];
  w.ready &= ~(uint32_t{1} << t.lane);
  if (w.ready == 0) e.warps_ready &= ~(uint32_t{1} << t.warp);
}

std::string where(const Thread& t) {
  const BlockView& b = t_block;
  char text[160];
  std::snprintf(text, sizeof text, "block (%u, %u, %u) thread (%u, %u, %u)", b.index.x, b.index.y,
                b.index.z, t.index.x, t.index.y, t.index.z);
  return text;
}

// What the threads of the block wait for, warp by warp, equal neighbours taken together.
std::string describe_threads(const Engine& e) {
  std::string text;
  const auto state = [&](const Thread& t) {
    char line[160];
    if ((e.warps[t.warp].live >> t.lane & 1) == 0) return std::string("has ended");
    if (t.waits_for == nullptr) return std::string("can run");
    std::snprintf(line, sizeof line, "waits at %s (mask %08x)", t.waits_for, t.waits_mask);
    return std::string(line);
  };
  for (size_t first = 0; first < e.threads.size();) {
    size_t end = first + 1;
    const std::string text_first = state(e.threads[first]);
    while (end < e.threads.size() && end % kWarpLanes != 0 && state(e.threads[end]) == text_first) {
      ++end;
    }
    text += "\n  threads " + std::to_string(first) + " to " + std::to_string(end - 1) + " (warp " +
            std::to_string(first / kWarpLanes) + "): " + text_first;
    first = end;
  }
  return text;
}

[[noreturn]] void leave(Engine& e, Thread& t) {
  switch_fiber(e.fibers[t.linear], e.host, true);
  std::abort();
}

// Gives the turn away. The thread must be ready or waiting.
void yield(Engine& e, Thread& t) {
  Thread* next = pick(e, t);
  if (next == &t) return;
  if (next == nullptr) {
    fail_kernel("deadlock: no thread of the block can go on");
  }
  t_thread = next;
  switch_fiber(e.fibers[t.linear], e.fibers[next->linear], false);
}

// Lets the meetings go on that waited only for lanes that have ended meanwhile.
void finish_meetings(Engine& e, int warp) {
  Warp& w = e.warps[warp];
  for (int i = 0; i < w.meetings;) {
    Meeting& m = w.meeting[i];
    if ((m.mask & w.live) != m.arrived) {
      ++i;
      continue;
    }
    const Meeting done = m;
    m = w.meeting[--w.meetings];
    done.work(w.lanes, done.arrived);
    set_ready(e, warp, done.arrived);
  }
}

// Lets a barrier go on where all its threads are there.
bool finish_barrier(Engine& e, int id) {
  Barrier& b = e.barriers[id];
  const int expected = b.expected != 0 ? b.expected : e.live;
  if (b.arrived == 0 || b.arrived < expected) return false;
  if (b.kind == BarrierKind::kOr) b.result = b.trues > 0;
  if (b.kind == BarrierKind::kAnd) b.result = b.trues == b.arrived;
  if (b.kind == BarrierKind::kCount) b.result = b.trues;
  b.arrived = 0;
  b.trues = 0;
  for (size_t w = 0; w < e.warps.size(); ++w) {
    if (e.warps[w].at_barrier[id] == 0) continue;
    set_ready(e, static_cast<int>(w), e.warps[w].at_barrier[id]);
    e.warps[w].at_barrier[id] = 0;
  }
  return true;
}

void thread_main() {
  fiber_started();
  Engine& e = engine();
  e.grid->invoke(e.grid->closure);
  Thread& t = *t_thread;
  set_waiting(e, t, nullptr, 0);
  e.warps[t.warp].live &= ~(uint32_t{1} << t.lane);
  --e.live;
  finish_meetings(e, t.warp);
  finish_barrier(e, 0);
  if (e.live == 0) leave(e, t);
  Thread* next = pick(e, t);
  if (next == nullptr) fail_kernel("deadlock: no thread of the block can go on");
  t_thread = next;
  switch_fiber(e.fibers[t.linear], e.fibers[next->linear], true);
  std::abort();
}

void prepare_block(Engine& e, const Grid& grid) {
  const auto count = static_cast<size_t>(grid.block.x) * grid.block.y * grid.block.z;
  e.fibers.reserve(count);
  e.threads.resize(count);
  e.warps.assign((count + kWarpLanes - 1) / kWarpLanes, Warp{});
  e.warps_ready = 0;
  e.live = static_cast<int>(count);
  for (Barrier& barrier : e.barriers) barrier = Barrier{};
  for (size_t i = 0; i < count; ++i) {
    Thread& t = e.threads[i];
    const auto n = static_cast<unsigned>(i);
    t.index = {n % grid.block.x, n / grid.block.x % grid.block.y,
               n / (grid.block.x * grid.block.y)};
    t.linear = static_cast<int>(i);
    t.lane = t.linear % kWarpLanes;
    t.warp = t.linear / kWarpLanes;
    t.waits_for = nullptr;
    t.copies.clear();
    t.groups.clear();
    Warp& w = e.warps[t.warp];
    w.live |= uint32_t{1} << t.lane;
    w.ready |= uint32_t{1} << t.lane;
    e.warps_ready |= uint32_t{1} << t.warp;
    prepare_fiber(e.fibers[i], thread_main);
  }
}

void run_block(Engine& e, const Grid& grid, uint3 index) {
  t_block = BlockView{index, grid.block, grid.grid, e.shared.begin_block(grid.shared_bytes)};
  prepare_block(e, grid);
  const bool reverse = e.order.kind == Order::Kind::kReverse;
  const size_t last = e.threads.size() - 1;
  size_t first = reverse ? last : 0;
  if (e.order.kind == Order::Kind::kRandom) first = next_random(e) % e.threads.size();
  t_thread = &e.threads[first];
  switch_fiber(e.host, e.fibers[first], false);
  t_thread = nullptr;
}

}  // namespace

Order order_from_environment() {
  const char* text = std::getenv("AKV_SHIM_ORDER");
  const std::string_view name = text == nullptr ? "forward" : text;
  if (name == "forward") return {Order::Kind::kForward, 0};
  if (name == "reverse") return {Order::Kind::kReverse, 0};
  if (name.starts_with("random:")) {
    g_preempt = true;
    return {Order::Kind::kRandom, std::strtoull(text + 7, nullptr, 10)};
  }
  std::fprintf(stderr, "AKV_SHIM_ORDER: got \"%s\", takes forward, reverse or random:SEED\n", text);
  std::exit(2);
}

void set_order(Order order) {
  g_order = order;
  g_preempt = order.kind == Order::Kind::kRandom;
}

Order order() { return g_order; }

std::string run_grid(const Grid& grid) {
  Engine& e = engine();
  adopt_thread(e.host);
  e.grid = &grid;
  e.order = g_order;
  e.random = (g_order.seed + 1) * 0x9E3779B97F4A7C15u;
  e.failure.clear();
  for (unsigned z = 0; z < grid.grid.z; ++z) {
    for (unsigned y = 0; y < grid.grid.y; ++y) {
      for (unsigned x = 0; x < grid.grid.x; ++x) {
        run_block(e, grid, {x, y, z});
        if (!e.failure.empty()) return e.failure;
      }
    }
  }
  return {};
}

void warp_operation(uint32_t mask, WarpWork work, const char* name, void* lane) {
  Engine& e = engine();
  Thread& t = *t_thread;
  Warp& w = e.warps[t.warp];
  const uint32_t self = uint32_t{1} << t.lane;
  if ((mask & self) == 0) fail_kernel("a lane is missing in the mask of its own warp operation");
  int i = 0;
  while (i < w.meetings && w.meeting[i].mask != mask) ++i;
  if (i == w.meetings) w.meeting[w.meetings++] = Meeting{mask, 0, work};
  Meeting& m = w.meeting[i];
  if (m.work != work) fail_kernel("lanes of one mask meet at different warp operations");
  m.arrived |= self;
  w.lanes[t.lane] = lane;
  if ((mask & w.live) == m.arrived) {
    const uint32_t arrived = m.arrived;
    m = w.meeting[--w.meetings];
    work(w.lanes, arrived);
    set_ready(e, t.warp, arrived);
    if (preempts(e)) yield(e, t);
    return;
  }
  set_waiting(e, t, name, mask);
  yield(e, t);
}

int block_barrier(BarrierKind kind, int predicate, const char* name) {
  Engine& e = engine();
  Thread& t = *t_thread;
  Barrier& b = e.barriers[0];
  if (b.arrived == 0) b.kind = kind;
  if (b.kind != kind) fail_kernel("threads meet at different kinds of block barrier");
  ++b.arrived;
  b.trues += predicate != 0;
  e.warps[t.warp].at_barrier[0] |= uint32_t{1} << t.lane;
  set_waiting(e, t, name, ~uint32_t{0});
  if (!finish_barrier(e, 0) || preempts(e)) yield(e, t);
  return b.result;
}

void named_barrier(int id, int threads) {
  Engine& e = engine();
  Thread& t = *t_thread;
  if (id < 1 || id > 15 || threads <= 0 || threads % kWarpLanes != 0) {
    fail_kernel("a named barrier has an id of 1 to 15 and takes whole warps");
  }
  Barrier& b = e.barriers[id];
  if (b.arrived == 0) b.expected = threads;
  if (b.expected != threads) fail_kernel("threads give one named barrier different counts");
  ++b.arrived;
  e.warps[t.warp].at_barrier[id] |= uint32_t{1} << t.lane;
  set_waiting(e, t, "a named barrier", ~uint32_t{0});
  if (!finish_barrier(e, id) || preempts(e)) yield(e, t);
}

void maybe_preempt() {
  if (!g_preempt) return;
  Engine& e = engine();
  if (preempts(e)) yield(e, *t_thread);
}

uint32_t live_lanes() { return engine().warps[t_thread->warp].live; }

void fail_kernel(const char* message) {
  Engine& e = engine();
  Thread& t = *t_thread;
  e.failure = std::string("kernel ") + e.grid->kernel + ", " + where(t) + ": " + message +
              describe_threads(e);
  leave(e, t);
}

}  // namespace cuda_shim
