#include "common/model/gguf.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "common/model/gguf_parser.h"
#include "kernels/dequant.h"

namespace akv::model {
namespace {

// Names of GGUF types that we refuse, so that the refusal can name them.
struct OtherType {
  uint32_t type;
  const char* name;
};
constexpr OtherType kOtherTypes[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

template <class T>
T load_at(std::span<const std::byte> bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T, class Out>
std::vector<Out> widen(const GgufArray& array) {
  std::vector<Out> out(array.count);
  for (uint64_t i = 0; i < array.count; ++i) {
    // i8 elements are numbers, not characters: NOLINTNEXTLINE(bugprone-signed-char-misuse)
    out[i] = static_cast<Out>(load_at<T>(array.bytes, i));
  }
  return out;
}

Error wrong_element(const char* wanted, GgufType got) {
  return make_error(Code::kInvalidArgument,
                    fmt::format("array of {} expected, its element type is {}", wanted,
                                static_cast<uint32_t>(got)));
}

}  // namespace

std::string tensor_type_name(uint32_t type) {
  if (tensor_type_known(type)) return kernels::type_name(static_cast<TensorType>(type));
  for (const OtherType& other : kOtherTypes) {
    if (other.type == type) return other.name;
  }
  return fmt::format("type {}", type);
}

bool tensor_type_known(uint32_t type) {
  return kernels::block_size(static_cast<TensorType>(type)) > 0;
}

std::string GgufTensor::shape() const {
  std::string out = "[";
  for (int d = 0; d < n_dims; ++d) {
    out += fmt::format("{}{}", d == 0 ? "" : ", ", dims[static_cast<size_t>(d)]);
  }
  return out + "]";
}

Result<std::vector<std::string_view>> GgufArray::strings() const {
  if (type != GgufType::kString) return wrong_element("strings", type);
  std::vector<std::string_view> out;
  out.reserve(count);
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof(size));
    out.emplace_back(reinterpret_cast<const char*>(bytes.data() + at + sizeof(size)), size);
    at += sizeof(size) + size;
  }
  return out;
}

Result<std::vector<int64_t>> GgufArray::integers() const {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return widen<uint8_t, int64_t>(*this);
    case GgufType::kI8:
      return widen<int8_t, int64_t>(*this);
    case GgufType::kU16:
      return widen<uint16_t, int64_t>(*this);
    case GgufType::kI16:
      return widen<int16_t, int64_t>(*this);
    case GgufType::kU32:
      return widen<uint32_t, int64_t>(*this);
    case GgufType::kI32:
      return widen<int32_t, int64_t>(*this);
    case GgufType::kU64:
    case GgufType::kI64:
      return widen<int64_t, int64_t>(*this);
    default:
      return wrong_element("integers", type);
  }
}

Result<std::vector<float>> GgufArray::floats() const {
  if (type == GgufType::kF32) return widen<float, float>(*this);
  if (type == GgufType::kF64) return widen<double, float>(*this);
  return wrong_element("floats", type);
}

Result<std::unique_ptr<const GgufFile>> GgufFile::parse(std::span<const std::byte> bytes,
                                                        std::string name) {
  std::unique_ptr<GgufFile> file = GgufParser::make_file();
  GgufParser::attach(*file, bytes, name);
  AKV_RETURN_IF_ERROR(GgufParser(bytes, std::move(name)).parse(*file));
  return std::unique_ptr<const GgufFile>(std::move(file));
}

Result<std::unique_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  AKV_ASSIGN_OR_RETURN(FileMap map, FileMap::open(path));
  std::unique_ptr<GgufFile> file = GgufParser::make_file();
  GgufParser::attach(*file, map.bytes(), path);
  file->map_ = std::move(map);
  AKV_RETURN_IF_ERROR(GgufParser(file->bytes_, path).parse(*file));
  return std::unique_ptr<const GgufFile>(std::move(file));
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = metadata_index_.find(key);
  return it == metadata_index_.end() ? nullptr : &metadata_[it->second].value;
}

}  // namespace akv::model
