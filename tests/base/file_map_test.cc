#include "common/base/file_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace akv {
namespace {

using ::testing::HasSubstr;

constexpr size_t kHugePage = 2 << 20;
const std::atomic<bool> kGoOn{false};

std::vector<char> random_bytes(size_t size) {
  std::minstd_rand random(7);
  std::vector<char> bytes(size);
  for (char& c : bytes) c = static_cast<char>(random() >> 8);
  return bytes;
}

std::string write_file(const testing::TempDir& dir, const std::vector<char>& bytes) {
  return dir.write("weights", std::string(bytes.begin(), bytes.end()));
}

bool same(const FileMap& map, const std::vector<char>& bytes) {
  return map.bytes().size() == bytes.size() &&
         std::memcmp(map.bytes().data(), bytes.data(), bytes.size()) == 0;
}

// Lines of this process's memory map that name the file.
int lines_of(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.ends_with(path) ? 1 : 0;
  return count;
}

TEST(FileMap, MovesToHugePagesInPlaceUnderReaders) {
  const testing::TempDir dir;
  const auto bytes = random_bytes(70 * kHugePage + 12345);  // more than one piece, and a rest
  const std::string path = write_file(dir, bytes);
  auto map = FileMap::open(path);
  ASSERT_TRUE(map.ok()) << map.error().message;
  const std::byte* const address = map->bytes().data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % kHugePage, 0u);
  EXPECT_EQ(lines_of(path), 1);

  std::atomic<bool> over{false};
  std::atomic<int> passes{0}, wrong{0};
  std::thread reader([&] {
    while (!over) {
      if (!same(*map, bytes)) ++wrong;
      ++passes;
    }
  });
  while (passes == 0) std::this_thread::yield();
  const auto moved = map->move_to_huge_pages(kGoOn);
  over = true;
  reader.join();
  if (!moved.ok() && moved.error().code == Code::kUnsupported) GTEST_SKIP() << "no huge pages";
  ASSERT_TRUE(moved.ok()) << moved.error().message;
  EXPECT_EQ(*moved, 70 * kHugePage);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(map->bytes().data(), address);
  EXPECT_TRUE(same(*map, bytes));
  EXPECT_EQ(lines_of(path), 1) << "the rest is the file's";

  // What was moved does not follow the file any more.
  std::ofstream(path, std::ios::binary | std::ios::in).write("changed", 7);
  EXPECT_TRUE(same(*map, bytes));
}

TEST(FileMap, StopsBetweenPieces) {
  const testing::TempDir dir;
  const auto bytes = random_bytes(3 * kHugePage);
  const auto map = FileMap::open(write_file(dir, bytes));
  ASSERT_TRUE(map.ok());
  const auto moved = map->move_to_huge_pages(std::atomic<bool>{true});
  if (!moved.ok()) GTEST_SKIP() << moved.error().message;
  EXPECT_EQ(*moved, 0u);
  EXPECT_TRUE(same(*map, bytes));
}

TEST(FileMap, LeavesASmallFileAlone) {
  const testing::TempDir dir;
  const auto bytes = random_bytes(1000);
  const auto map = FileMap::open(write_file(dir, bytes));
  ASSERT_TRUE(map.ok());
  const auto moved = map->move_to_huge_pages(kGoOn);
  if (!moved.ok()) GTEST_SKIP() << moved.error().message;
  EXPECT_EQ(*moved, 0u);
  EXPECT_TRUE(same(*map, bytes));
}

TEST(FileMap, GoesToItsNextOwner) {
  const testing::TempDir dir;
  const auto bytes = random_bytes(5000);
  auto first = FileMap::open(write_file(dir, bytes));
  ASSERT_TRUE(first.ok());
  FileMap second = std::move(*first);
  EXPECT_TRUE(same(second, bytes));
  EXPECT_TRUE(first->bytes().empty());  // NOLINT(bugprone-use-after-move): that is the question
}

TEST(FileMap, SaysWhatItCannotMap) {
  const testing::TempDir dir;
  EXPECT_EQ(FileMap::open(dir.path() + "/none").error().code, Code::kNotFound);
  EXPECT_THAT(FileMap::open(dir.path()).error().message, HasSubstr("no regular file"));
  const std::string path = write_file(dir, {});
  EXPECT_THAT(FileMap::open(path).error().message, HasSubstr("empty"));
}

}  // namespace
}  // namespace akv
