// Streams, memory, events and graphs: the same on the shim and on a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "common/device/device.h"
#include "common/device/export_pool.h"
#include "common/device/graph.h"
#include "common/device/memory.h"
#include "common/device/stream.h"
#include "tests/device/device_kernels.h"

namespace akv {
namespace {

class OnDevice : public testing::Test {
 protected:
  OnDevice() {
    Result<DeviceChoice> choice = choose_device("cuda");
    EXPECT_TRUE(choice.ok()) << choice.error().message;
    device_ = choice->device;
  }
  Stream make_stream() {
    Result<Stream> stream = Stream::create(device_);
    EXPECT_TRUE(stream.ok()) << stream.error().message;
    return std::move(*stream);
  }
  std::shared_ptr<DevicePool> make_pool(uint64_t limit_bytes) {
    auto pool = DevicePool::create(device_, limit_bytes);
    EXPECT_TRUE(pool.ok()) << pool.error().message;
    return *pool;
  }

  Device device_;
};

std::vector<int> counted(int n) {
  std::vector<int> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<int> read(const Stream& stream, const DeviceBuffer& buffer, size_t n) {
  std::vector<int> values(n);
  EXPECT_TRUE(stream.download(std::span(values), buffer.as<int>()).ok());
  EXPECT_TRUE(stream.synchronize().ok());
  return values;
}

TEST_F(OnDevice, IsDescribed) {
  EXPECT_TRUE(device_.is_cuda());
  EXPECT_FALSE(device_.name.empty());
  EXPECT_GT(device_.memory_bytes, uint64_t{1} << 20);
  EXPECT_GE(device_.compute_capability, 80);
  EXPECT_GT(device_.multiprocessors, 0);
  EXPECT_GE(device_.shared_memory_bytes, 99 << 10);
  const Result<uint64_t> free = free_memory_bytes(device_);
  ASSERT_TRUE(free.ok());
  EXPECT_LE(*free, device_.memory_bytes);
  EXPECT_FALSE(device_.health->lost().has_value());
}

TEST_F(OnDevice, RunsAKernelBetweenCopies) {
  Stream stream = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> buffer = pool->allocate(1000 * sizeof(int), stream);
  ASSERT_TRUE(buffer.ok());
  const std::vector<int> in = counted(1000);
  ASSERT_TRUE(stream.upload(buffer->as<int>(), std::span(in)).ok());
  add_one(buffer->as<int>(), 1000, stream);
  const std::vector<int> out = read(stream, *buffer, 1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], i + 1);
}

TEST_F(OnDevice, CopiesAndFillsOnTheDevice) {
  Stream stream = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> a = pool->allocate(64, stream);
  Result<DeviceBuffer> b = pool->allocate(64, stream);
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_TRUE(stream.fill(a->data(), 0x11, 64).ok());
  ASSERT_TRUE(stream.copy_on_device(b->data(), a->data(), 64).ok());
  EXPECT_EQ(read(stream, *b, 16), std::vector<int>(16, 0x11111111));
}

TEST_F(OnDevice, AnEventOrdersTwoStreams) {
  Stream first = make_stream();
  Stream second = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> buffer = pool->allocate(4 * sizeof(int), first);
  Result<Event> event = Event::create(device_);
  ASSERT_TRUE(buffer.ok() && event.ok());
  ASSERT_TRUE(first.fill(buffer->data(), 0, 16).ok());
  add_one(buffer->as<int>(), 4, first);
  ASSERT_TRUE(event->record(first).ok());
  ASSERT_TRUE(second.wait(*event).ok());
  add_one(buffer->as<int>(), 4, second);
  EXPECT_EQ(read(second, *buffer, 4), std::vector<int>(4, 2));
  EXPECT_TRUE(*event->reached());
  EXPECT_TRUE(*first.idle());
  buffer->release_in(second);
}

TEST_F(OnDevice, EventsMeasureTime) {
  Stream stream = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> buffer = pool->allocate(1 << 16, stream);
  Result<Event> start = Event::create(device_, true);
  Result<Event> end = Event::create(device_, true);
  ASSERT_TRUE(buffer.ok() && start.ok() && end.ok());
  ASSERT_TRUE(start->record(stream).ok());
  ASSERT_TRUE(stream.fill(buffer->data(), 1, 1 << 16).ok());
  ASSERT_TRUE(end->record(stream).ok());
  ASSERT_TRUE(end->synchronize().ok());
  const Result<double> seconds = Event::seconds_between(*start, *end);
  ASSERT_TRUE(seconds.ok());
  EXPECT_GE(*seconds, 0.0);
}

TEST_F(OnDevice, APoolKeepsItsLimit) {
  Stream stream = make_stream();
  auto pool = make_pool(8192);
  Result<DeviceBuffer> first = pool->allocate(4096, stream);
  Result<DeviceBuffer> second = pool->allocate(4000, stream);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(pool->used_bytes(), 8192u);
  const Result<DeviceBuffer> third = pool->allocate(1, stream);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, Code::kResourceExhausted);
  *first = DeviceBuffer();
  EXPECT_EQ(pool->used_bytes(), 4096u);
  EXPECT_TRUE(pool->allocate(4096, stream).ok());
  EXPECT_FALSE(pool->allocate(UINT64_MAX, stream).ok());
  EXPECT_EQ(pool->peak_bytes(), 8192u);
  EXPECT_TRUE(pool->trim().ok());
  EXPECT_FALSE(*pool->allocate(0, stream));
}

TEST_F(OnDevice, MemoryOutsideOfPools) {
  Result<DeviceBuffer> buffer = DeviceBuffer::allocate(device_, 4096);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
  DeviceBuffer moved = std::move(*buffer);
  EXPECT_EQ(moved.size(), 4096u);
  EXPECT_FALSE(*buffer);
}

TEST_F(OnDevice, PinnedMemoryIsReused) {
  auto pool = PinnedPool::create(device_, 3 << 20);
  ASSERT_TRUE(pool.ok());
  std::byte* first = nullptr;
  {
    Result<PinnedBuffer> buffer = (*pool)->allocate(1000000);
    ASSERT_TRUE(buffer.ok());
    first = buffer->data();
    buffer->as<int>()[0] = 7;
  }
  {
    Result<PinnedBuffer> again = (*pool)->allocate(900000);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->data(), first);
    EXPECT_EQ(again->bytes().size(), 900000u);
    EXPECT_EQ((*pool)->allocate(4 << 20).error().code, Code::kResourceExhausted);
  }
  // What is kept makes room for another size.
  EXPECT_TRUE((*pool)->allocate(2 << 20).ok());
  EXPECT_LE((*pool)->held_bytes(), uint64_t{3} << 20);
}

TEST_F(OnDevice, MemoryForOthersIsKeptBySizeUpToALimit) {
  const auto pool = ExportPool::create(device_, 1 << 20);
  auto first = pool->allocate(300000);
  ASSERT_TRUE(first.ok());
  std::byte* const at = first->get();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 256, 0u);
  EXPECT_GE(pool->held_bytes(), 300000u);
  EXPECT_LE(pool->held_bytes(), 400000u);
  first->reset();
  auto again = pool->allocate(299000);  // of the same size class
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->get(), at);
  const auto over = pool->allocate(900000);
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.error().code, Code::kResourceExhausted);
  again->reset();
  auto larger = pool->allocate(900000);  // what was kept makes room
  ASSERT_TRUE(larger.ok());
  EXPECT_LE(pool->held_bytes(), uint64_t{1} << 20);
  auto owner = *larger;
  larger->reset();
  EXPECT_FALSE(pool->allocate(900000).ok());  // still in use
}

TEST_F(OnDevice, AGraphPlaysWhatWasRecorded) {
  Stream stream = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> buffer = pool->allocate(100 * sizeof(int), stream);
  ASSERT_TRUE(buffer.ok());
  ASSERT_TRUE(stream.fill(buffer->data(), 0, 400).ok());
  Result<Graph> graph = Graph::capture(stream, [&]() -> Status {
    add_one(buffer->as<int>(), 100, stream);
    add_one(buffer->as<int>(), 50, stream);
    return {};
  });
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  EXPECT_EQ(graph->nodes(), 2u);
  EXPECT_EQ(read(stream, *buffer, 100), std::vector<int>(100, 0));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(graph->launch(stream).ok());
  const std::vector<int> out = read(stream, *buffer, 100);
  EXPECT_EQ(out[0], 6);
  EXPECT_EQ(out[99], 3);
}

TEST_F(OnDevice, AGraphSpansStreamsThatJoin) {
  Stream stream = make_stream();
  Stream side = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> buffer = pool->allocate(100 * sizeof(int), stream);
  Result<Event> fork = Event::create(device_);
  Result<Event> join = Event::create(device_);
  ASSERT_TRUE(buffer.ok() && fork.ok() && join.ok());
  ASSERT_TRUE(stream.fill(buffer->data(), 0, 400).ok());
  Result<Graph> graph = Graph::capture(stream, [&]() -> Status {
    add_one(buffer->as<int>(), 50, stream);
    AKV_RETURN_IF_ERROR(fork->record(stream));
    AKV_RETURN_IF_ERROR(side.wait(*fork));
    add_one(buffer->as<int>() + 50, 50, side);
    AKV_RETURN_IF_ERROR(join->record(side));
    return stream.wait(*join);
  });
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  ASSERT_TRUE(graph->launch(stream).ok());
  EXPECT_EQ(read(stream, *buffer, 100), std::vector<int>(100, 1));
}

TEST_F(OnDevice, AGraphThatFailsToRecordLeavesTheStreamUsable) {
  Stream stream = make_stream();
  auto pool = make_pool(1 << 20);
  Result<DeviceBuffer> buffer = pool->allocate(16, stream);
  ASSERT_TRUE(buffer.ok());
  const Result<Graph> refused = Graph::capture(
      stream, [] { return Status(make_error(Code::kInvalidArgument, "not today")); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "not today");
  const Result<Graph> waited = Graph::capture(stream, [&] { return stream.synchronize(); });
  EXPECT_FALSE(waited.ok());
  ASSERT_TRUE(stream.fill(buffer->data(), 1, 16).ok());
  EXPECT_EQ(read(stream, *buffer, 4), std::vector<int>(4, 0x01010101));
}

TEST_F(OnDevice, ALaunchThatIsWrongIsFoundOnce) {
  Stream stream = make_stream();
  ASSERT_TRUE(use_device(device_).ok());
  launch_wrongly(stream);
  const Status first = stream.check();
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, Code::kInternal);
  EXPECT_THAT(first.error().message, testing::HasSubstr("launch"));
  EXPECT_TRUE(stream.check().ok());
  EXPECT_TRUE(stream.synchronize().ok());
  EXPECT_FALSE(device_.health->lost().has_value());
}

}  // namespace
}  // namespace akv
