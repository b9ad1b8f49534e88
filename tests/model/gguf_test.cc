#include "common/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "tests/model/gguf_builder.h"

namespace akv::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kU32 = 4;
constexpr uint32_t kArrayType = 9;

// The error of parsing a builder's bytes, or "parsed".
std::string error_of(const GgufBuilder& builder) {
  const GgufBuilder::Bytes bytes = builder.build();
  const auto file = GgufFile::parse(bytes, "test");
  return file.ok() ? "parsed" : file.error().message;
}

TEST(Gguf, ReadsEveryValueType) {
  GgufBuilder b;
  b.add_raw("u8", 0, uint8_t{200}).add_raw("i8", 1, int8_t{-3}).add_raw("u16", 2, uint16_t{60000});
  b.add_raw("i16", 3, int16_t{-5}).add_uint("u32", 7).add_raw("i32", 5, int32_t{9});
  b.add_float("f32", 1.5f).add_raw("bool", 7, uint8_t{1}).add_string("text", "hello");
  b.add_raw("u64", 10, uint64_t{1} << 60).add_raw("i64", 11, int64_t{-7}).add_raw("f64", 12, 2.5);
  const auto bytes = b.build();
  const auto file = GgufFile::parse(bytes, "test");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const GgufFile& f = **file;
  EXPECT_EQ(*f.get_uint("u8"), 200u);
  EXPECT_EQ(std::get<int64_t>(*f.find("i8")), -3);
  EXPECT_EQ(*f.get_uint("u16"), 60000u);
  EXPECT_EQ(std::get<int64_t>(*f.find("i16")), -5);
  EXPECT_EQ(*f.get_uint("i32"), 9u);  // a signed value >= 0 is taken as a count
  EXPECT_EQ(*f.get_float("f32"), 1.5);
  EXPECT_EQ(*f.find_bool("bool"), std::optional<bool>(true));
  EXPECT_EQ(*f.get_string("text"), "hello");
  EXPECT_EQ(*f.get_uint("u64"), uint64_t{1} << 60);
  EXPECT_EQ(std::get<int64_t>(*f.find("i64")), -7);
  EXPECT_EQ(*f.get_float("f64"), 2.5);
  EXPECT_EQ(f.find("absent"), nullptr);
}

TEST(Gguf, ReadsArrays) {
  GgufBuilder b;
  b.add_strings("words", {"a", "", "ccc"}).add_ints("ints", {4, -5, 6});
  b.add_raw("floats", kArrayType, uint32_t{6}, uint64_t{2}, 0.5f, -1.0f);
  b.add_raw("nested", kArrayType, kArrayType, uint64_t{1}, kU32, uint64_t{2}, 1u, 2u);
  const auto bytes = b.build();
  const auto file = GgufFile::parse(bytes, "test");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_THAT(*(*file)->get_array("words")->strings(), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*(*file)->get_array("ints")->integers(), ElementsAre(4, -5, 6));
  EXPECT_THAT(*(*file)->get_array("floats")->floats(), ElementsAre(0.5f, -1.0f));
  EXPECT_EQ((*file)->get_array("nested")->count, 1u);
  EXPECT_FALSE((*file)->get_array("words")->integers().ok());
  EXPECT_FALSE((*file)->get_array("ints")->strings().ok());
}

TEST(Gguf, TypedAccessNamesTheKey) {
  GgufBuilder b;
  b.add_string("word", "x").add_raw("negative", 5, int32_t{-1});
  const auto bytes = b.build();
  const auto file = GgufFile::parse(bytes, "test");
  ASSERT_TRUE(file.ok());
  EXPECT_THAT((*file)->get_uint("word").error().message,
              AllOf(HasSubstr("'word'"), HasSubstr("got string")));
  EXPECT_THAT((*file)->get_uint("gone").error().message,
              AllOf(HasSubstr("'gone'"), HasSubstr("missing")));
  EXPECT_FALSE((*file)->find_uint("negative").ok());
  EXPECT_EQ((*file)->get_uint("gone").error().param, "gone");
}

TEST(Gguf, PlacesTensors) {
  GgufBuilder b;
  b.add_f32("first", {3}, 2.0f).add_f32("second", {4, 2}, 5.0f);
  const auto bytes = b.build();
  const auto file = GgufFile::parse(bytes, "test");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const GgufTensor* second = (*file)->find_tensor("second");
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->shape(), "[4, 2]");
  EXPECT_EQ(second->data.size(), 32u);
  float value = 0;
  std::memcpy(&value, second->data.data() + 28, 4);
  EXPECT_EQ(value, 5.0f);
  EXPECT_EQ((*file)->find_tensor("third"), nullptr);
  EXPECT_LE((*file)->head_bytes().size(), bytes.size() - 64);
}

TEST(Gguf, TakesStatedAlignment) {
  GgufBuilder b;
  b.alignment = 64;
  b.add_uint("general.alignment", 64).add_f32("a", {3}).add_f32("b", {3});
  EXPECT_EQ(error_of(b), "parsed");
  for (const uint32_t wrong : {0u, 4u, 48u, 1u << 21}) {
    GgufBuilder w;
    w.add_uint("general.alignment", wrong);
    EXPECT_THAT(error_of(w), AllOf(HasSubstr("general.alignment"), HasSubstr("power of two")));
  }
}

TEST(Gguf, RefusesEveryTruncation) {
  TinyModel tiny;
  const auto bytes = tiny.builder().build();
  ASSERT_TRUE(GgufFile::parse(bytes, "whole").ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of its own, so that a read past the end is a read past the allocation.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    const auto file = GgufFile::parse(cut, "cut");
    ASSERT_FALSE(file.ok()) << "cut to " << size;
    EXPECT_EQ(file.error().code, Code::kInvalidArgument);
  }
}

struct BadFile {
  const char* name;
  std::function<void(GgufBuilder&)> spoil;
  std::vector<const char*> message;  // substrings
};

class GgufRefuses : public ::testing::TestWithParam<BadFile> {};

TEST_P(GgufRefuses, WithAMessage) {
  GgufBuilder b;
  GetParam().spoil(b);
  const std::string message = error_of(b);
  for (const char* part : GetParam().message) EXPECT_THAT(message, HasSubstr(part));
}

const BadFile kBadFiles[] = {
    {"magic", [](GgufBuilder& b) { b.magic = 0x12345678; }, {"not a GGUF file", "12345678"}},
    {"big_endian", [](GgufBuilder& b) { b.version = 0x03000000; }, {"big-endian"}},
    {"version_1", [](GgufBuilder& b) { b.version = 1; }, {"version 1", "2 and 3"}},
    {"version_4", [](GgufBuilder& b) { b.version = 4; }, {"version 4"}},
    {"entry_count", [](GgufBuilder& b) { b.extra_entries = 1LL << 60; }, {"metadata entries"}},
    {"tensor_count", [](GgufBuilder& b) { b.extra_tensors = 1LL << 60; }, {"tensors cannot fit"}},
    {"key_twice",
     [](GgufBuilder& b) { b.add_uint("k", 1).add_uint("k", 2); },
     {"'k'", "appears twice"}},
    {"empty_key", [](GgufBuilder& b) { b.add_uint("", 1); }, {"empty key"}},
    {"value_type", [](GgufBuilder& b) { b.add_raw("k", 13, 0u); }, {"'k'", "value type 13"}},
    {"bool", [](GgufBuilder& b) { b.add_raw("k", 7, uint8_t{2}); }, {"'k'", "bool of value 2"}},
    {"string_length",
     [](GgufBuilder& b) { b.add_raw("k", 8, ~uint64_t{0}); },
     {"'k'", "exceeds the file"}},
    {"array_count",
     [](GgufBuilder& b) { b.add_raw("k", kArrayType, kU32, uint64_t{1} << 62); },
     {"'k'", "array of"}},
    {"array_of_strings",
     [](GgufBuilder& b) { b.add_raw("k", kArrayType, 8u, uint64_t{1}, uint64_t{99}); },
     {"'k'", "string of 99"}},
    {"nesting",
     [](GgufBuilder& b) {
       const uint64_t one = 1;
       b.add_raw("k", kArrayType, kArrayType, one, kArrayType, one, kArrayType, one, kArrayType,
                 one, kU32, one, 7u);
     },
     {"'k'", "nested"}},
    {"tensor_twice",
     [](GgufBuilder& b) { b.add_f32("t", {8}).add_f32("t", {8}); },
     {"'t'", "appears twice"}},
    {"no_dims", [](GgufBuilder& b) { b.add_entry("t", {}, 0, 0); }, {"'t'", "0 dimensions"}},
    {"five_dims",
     [](GgufBuilder& b) {
       b.add_entry("t", {1, 1, 1, 1, 1}, 0, 0);
     },
     {"'t'", "5 dimensions"}},
    {"zero_dim",
     [](GgufBuilder& b) {
       b.add_entry("t", {8, 0}, 0, 0);
     },
     {"'t'", "is 0"}},
    {"overflow",
     [](GgufBuilder& b) {
       b.add_entry("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0);
     },
     {"'t'", "exceeds the file"}},
    {"unread_type",
     [](GgufBuilder& b) { b.add_entry("t", {32}, 23, 0).add_data(64); },
     {"'t'", "IQ4_XS", "Q6_K"}},
    {"unknown_type",
     [](GgufBuilder& b) { b.add_entry("t", {32}, 777, 0).add_data(64); },
     {"'t'", "type 777"}},
    {"block",
     [](GgufBuilder& b) { b.add_entry("t", {40}, 2, 0).add_data(64); },
     {"'t'", "40", "Q4_0"}},
    {"misaligned",
     [](GgufBuilder& b) { b.add_entry("t", {8}, 0, 8).add_data(64); },
     {"'t'", "not aligned"}},
    {"outside",
     [](GgufBuilder& b) { b.add_entry("t", {8}, 0, 64).add_data(64); },
     {"'t'", "outside"}},
    {"far_offset",
     [](GgufBuilder& b) { b.add_entry("t", {8}, 0, ~uint64_t{0} - 31).add_data(64); },
     {"'t'", "outside"}},
    {"overlap",
     [](GgufBuilder& b) {
       b.add_entry("low", {16}, 0, 0).add_entry("high", {8}, 0, 32).add_data(64);
     },
     {"'high'", "overlap", "'low'"}},
};

INSTANTIATE_TEST_SUITE_P(Files, GgufRefuses, ::testing::ValuesIn(kBadFiles),
                         [](const auto& test) { return test.param.name; });

class GgufOpen : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "/akv_gguf_" + std::to_string(::getpid());
  void TearDown() override { ::unlink(path_.c_str()); }
};

TEST_F(GgufOpen, MapsAFile) {
  const auto bytes = TinyModel().builder().build();
  std::ofstream(path_, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
  const auto file = GgufFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->file_bytes(), bytes.size());
  EXPECT_EQ((*file)->version(), 3u);
}

TEST_F(GgufOpen, NamesWhatIsWrongWithThePath) {
  EXPECT_EQ(GgufFile::open(path_).error().code, Code::kNotFound);
  std::ofstream{path_};
  EXPECT_THAT(GgufFile::open(path_).error().message, HasSubstr("empty"));
  EXPECT_THAT(GgufFile::open("/tmp").error().message, HasSubstr("no regular file"));
}

}  // namespace
}  // namespace akv::model
