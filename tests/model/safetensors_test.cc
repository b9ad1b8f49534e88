#include "common/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace akv::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> file_of(const std::string& header, size_t data_bytes,
                               int64_t header_extra = 0) {
  const uint64_t size = header.size() + static_cast<uint64_t>(header_extra);
  std::vector<std::byte> out(8 + header.size() + data_bytes);
  std::memcpy(out.data(), &size, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) {
    out[8 + header.size() + i] = static_cast<std::byte>(i);
  }
  return out;
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const auto file =
      Safetensors::parse(file_of(R"({"__metadata__":{"a":"b"},)"
                                 R"("x":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
                                 R"("y":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}})",
                                 20),
                         "test");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->metadata().at("a"), "b");
  EXPECT_THAT(*file->i32("x"), ElementsAre(0x03020100, 0x07060504));
  EXPECT_EQ(file->tensors().at("y").elements(), 6);
  EXPECT_EQ(file->tensors().at("y").type, SafetensorsType::kBF16);
  EXPECT_EQ(file->f32("x").error().code, Code::kInvalidArgument);
  EXPECT_EQ(file->f32("z").error().code, Code::kNotFound);
}

struct BadFile {
  const char* name;
  const char* header;
  const char* message;
  size_t data_bytes = 8;
  int64_t header_extra = 0;
};

class SafetensorsRefuses : public ::testing::TestWithParam<BadFile> {};

TEST_P(SafetensorsRefuses, WithAMessage) {
  const BadFile& bad = GetParam();
  const auto file =
      Safetensors::parse(file_of(bad.header, bad.data_bytes, bad.header_extra), "test");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, HasSubstr(bad.message));
}

const BadFile kBadFiles[] = {
    {"header_length", "{}", "exceeds the file", 8, 1 << 20},
    {"json", "{", "no JSON object"},
    {"array", "[]", "no JSON object"},
    {"twice",
     R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "twice"},
    {"dtype", R"({"x":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", "unknown dtype"},
    {"field", R"({"x":{"dtype":"F32","shape":[2]}})", "needs dtype"},
    {"negative", R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "no integer"},
    {"overflow", R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
     "exceeds"},
    {"outside", R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "outside"},
    {"size", R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", "do not fit"},
    {"gap", R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "gap"},
    {"overlap",
     R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
     R"("y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "overlap"},
    {"rest", R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "behind"},
    {"metadata", R"({"__metadata__":{"a":1}})", "no string", 0},
};

INSTANTIATE_TEST_SUITE_P(Files, SafetensorsRefuses, ::testing::ValuesIn(kBadFiles),
                         [](const auto& test) { return test.param.name; });

TEST(Safetensors, RefusesEveryTruncation) {
  const auto whole = file_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(Safetensors::parse(whole, "whole").ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(
        Safetensors::parse({whole.begin(), whole.begin() + static_cast<long>(size)}, "cut").ok());
  }
  EXPECT_EQ(Safetensors::read("/nowhere/file").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace akv::model
