#include "common/model/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/dequant.h"

namespace akv::model {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 256;  // the format says 64; converters exceed it
constexpr uint64_t kMaxAlignment = 1u << 20;
constexpr int kMaxArrayDepth = 4;
// The least bytes that one entry of each table can take: bounds counts before anything is reserved.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// Least bytes of one element; exact for all but strings and arrays.
uint64_t min_element_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
    case GgufType::kString:
      return 8;
    case GgufType::kArray:
      return 12;
  }
  return 1;
}

// Key or tensor names in messages: what is printable, cut short.
std::string printable(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, 80)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  if (text.size() > 80) out += "...";
  return out;
}

}  // namespace

GgufParser::GgufParser(std::span<const std::byte> bytes, std::string name)
    : bytes_(bytes), name_(std::move(name)) {}

void GgufParser::attach(GgufFile& file, std::span<const std::byte> bytes, std::string name) {
  file.bytes_ = bytes;
  file.name_ = std::move(name);
}

Error GgufParser::fail(std::string_view what) const {
  return make_error(
      Code::kInvalidArgument,
      fmt::format("GGUF {}: {}: {} (at byte {} of {})", name_, where_, what, at_, bytes_.size()),
      where_);
}

Error GgufParser::unsupported(std::string_view what) const {
  return make_error(Code::kUnsupported, fmt::format("GGUF {}: {}: {}", name_, where_, what),
                    where_);
}

template <class T>
Result<T> GgufParser::take() {
  if (left() < sizeof(T)) return fail("the file ends here: truncated");
  T value;
  std::memcpy(&value, bytes_.data() + at_, sizeof(T));
  at_ += sizeof(T);
  return value;
}

Status GgufParser::parse(GgufFile& file) {
  uint64_t tensors = 0;
  uint64_t entries = 0;
  AKV_RETURN_IF_ERROR(parse_header(file, &tensors, &entries));
  AKV_RETURN_IF_ERROR(parse_metadata(file, entries));
  AKV_RETURN_IF_ERROR(parse_tensor_table(file, tensors));
  return place_tensors(file);
}

Status GgufParser::parse_header(GgufFile& file, uint64_t* tensors, uint64_t* entries) {
  AKV_ASSIGN_OR_RETURN(const uint32_t magic, take<uint32_t>());
  if (magic != kMagic) {
    return fail(fmt::format("not a GGUF file: magic {:08x}, expected {:08x}", magic, kMagic));
  }
  AKV_ASSIGN_OR_RETURN(file.version_, take<uint32_t>());
  if ((file.version_ & 0xffffu) == 0 && file.version_ != 0) {
    return unsupported("big-endian file; only little-endian is read");
  }
  // v3 differs from v2 only in allowing big-endian files.
  if (file.version_ != 2 && file.version_ != 3) {
    return unsupported(fmt::format("version {}; 2 and 3 are read", file.version_));
  }
  AKV_ASSIGN_OR_RETURN(*tensors, take<uint64_t>());
  AKV_ASSIGN_OR_RETURN(*entries, take<uint64_t>());
  if (*entries > left() / kMinEntryBytes) {
    return fail(fmt::format("{} metadata entries cannot fit in the file", *entries));
  }
  if (*tensors > left() / kMinTensorBytes) {
    return fail(fmt::format("{} tensors cannot fit in the file", *tensors));
  }
  return {};
}

Result<std::string_view> GgufParser::parse_string(uint64_t max_bytes) {
  AKV_ASSIGN_OR_RETURN(const uint64_t size, take<uint64_t>());
  if (size > left()) return fail(fmt::format("string of {} bytes exceeds the file", size));
  if (size > max_bytes) {
    return fail(fmt::format("string of {} bytes; at most {} are taken", size, max_bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + at_), size);
  at_ += size;
  return text;
}

Result<GgufType> GgufParser::parse_type() {
  AKV_ASSIGN_OR_RETURN(const uint32_t type, take<uint32_t>());
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return fail(fmt::format("value type {}; 0 to 12 are known", type));
  }
  return static_cast<GgufType>(type);
}

Status GgufParser::parse_metadata(GgufFile& file, uint64_t entries) {
  file.metadata_.reserve(entries);
  for (uint64_t i = 0; i < entries; ++i) {
    where_ = fmt::format("metadata entry {}", i);
    AKV_ASSIGN_OR_RETURN(const std::string_view key, parse_string(kMaxKeyBytes));
    where_ = fmt::format("key '{}'", printable(key));
    if (key.empty()) return fail("empty key");
    if (!file.metadata_index_.emplace(key, i).second) return fail("the key appears twice");
    const size_t begin = at_;
    AKV_ASSIGN_OR_RETURN(const GgufType type, parse_type());
    AKV_ASSIGN_OR_RETURN(const GgufValue value, parse_value(type, 0));
    file.metadata_.push_back({key, value, bytes_.subspan(begin, at_ - begin)});
  }
  where_ = "key 'general.alignment'";
  AKV_ASSIGN_OR_RETURN(const std::optional<uint64_t> alignment,
                       file.find_uint("general.alignment"));
  alignment_ = alignment.value_or(32);
  if (!std::has_single_bit(alignment_) || alignment_ < 8 || alignment_ > kMaxAlignment) {
    return fail(fmt::format("alignment {}; a power of two from 8 to {} is taken", alignment_,
                            kMaxAlignment));
  }
  return {};
}

Result<GgufValue> GgufParser::parse_value(GgufType type, int depth) {
  // Widens a fixed-size value to the variant's member for its sign class.
  const auto widen = [this]<class T, class W>(T, W) -> Result<GgufValue> {
    AKV_ASSIGN_OR_RETURN(const T value, take<T>());
    return GgufValue(static_cast<W>(value));
  };
  switch (type) {
    case GgufType::kU8:
      return widen(uint8_t{}, uint64_t{});
    case GgufType::kI8:
      return widen(int8_t{}, int64_t{});
    case GgufType::kU16:
      return widen(uint16_t{}, uint64_t{});
    case GgufType::kI16:
      return widen(int16_t{}, int64_t{});
    case GgufType::kU32:
      return widen(uint32_t{}, uint64_t{});
    case GgufType::kI32:
      return widen(int32_t{}, int64_t{});
    case GgufType::kF32:
      return widen(float{}, double{});
    case GgufType::kU64:
      return widen(uint64_t{}, uint64_t{});
    case GgufType::kI64:
      return widen(int64_t{}, int64_t{});
    case GgufType::kF64:
      return widen(double{}, double{});
    case GgufType::kBool: {
      AKV_ASSIGN_OR_RETURN(const uint8_t value, take<uint8_t>());
      if (value > 1) return fail(fmt::format("bool of value {}; 0 or 1 is taken", value));
      return GgufValue(value == 1);
    }
    case GgufType::kString: {
      AKV_ASSIGN_OR_RETURN(const std::string_view text,
                           parse_string(std::numeric_limits<uint32_t>::max()));
      return GgufValue(text);
    }
    case GgufType::kArray:
      return parse_array(depth);
  }
  return fail("unknown value type");
}

Result<GgufValue> GgufParser::parse_array(int depth) {
  if (depth >= kMaxArrayDepth) {
    return fail(fmt::format("arrays nested deeper than {}", kMaxArrayDepth));
  }
  AKV_ASSIGN_OR_RETURN(const GgufType type, parse_type());
  AKV_ASSIGN_OR_RETURN(const uint64_t count, take<uint64_t>());
  const uint64_t element = min_element_bytes(type);
  if (count > left() / element) {
    return fail(fmt::format("array of {} elements exceeds the file", count));
  }
  const size_t begin = at_;
  if (type == GgufType::kString || type == GgufType::kArray || type == GgufType::kBool) {
    for (uint64_t i = 0; i < count; ++i) AKV_RETURN_IF_ERROR(parse_value(type, depth + 1));
  } else {
    at_ += count * element;
  }
  return GgufValue(GgufArray{type, count, bytes_.subspan(begin, at_ - begin)});
}

Status GgufParser::parse_tensor_table(GgufFile& file, uint64_t tensors) {
  file.tensors_.reserve(tensors);
  offsets_.reserve(tensors);
  for (uint64_t i = 0; i < tensors; ++i) {
    where_ = fmt::format("tensor {}", i);
    AKV_RETURN_IF_ERROR(parse_tensor(file));
  }
  file.head_size_ = at_;
  return {};
}

Status GgufParser::parse_tensor(GgufFile& file) {
  GgufTensor tensor;
  AKV_ASSIGN_OR_RETURN(tensor.name, parse_string(kMaxTensorNameBytes));
  where_ = fmt::format("tensor '{}'", printable(tensor.name));
  if (!file.tensor_index_.emplace(tensor.name, file.tensors_.size()).second) {
    return fail("the tensor appears twice");
  }
  AKV_ASSIGN_OR_RETURN(const uint32_t dims, take<uint32_t>());
  if (dims < 1 || dims > 4) return fail(fmt::format("{} dimensions; 1 to 4 are taken", dims));
  tensor.n_dims = static_cast<int>(dims);
  // Bounding the element count by the file's bits keeps every product below 2^64.
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dims; ++d) {
    AKV_ASSIGN_OR_RETURN(tensor.dims[d], take<uint64_t>());
    if (tensor.dims[d] == 0) return fail("a dimension is 0");
    if (tensor.dims[d] > bytes_.size() * 8 / elements) {
      return fail(fmt::format("shape {} exceeds the file", tensor.shape()));
    }
    elements *= tensor.dims[d];
  }
  AKV_ASSIGN_OR_RETURN(const uint32_t type, take<uint32_t>());
  if (!tensor_type_known(type)) {
    return unsupported(
        fmt::format("{}; F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K are read",
                    tensor_type_name(type)));
  }
  tensor.type = static_cast<TensorType>(type);
  const auto block_values = static_cast<uint64_t>(kernels::block_size(tensor.type));
  if (tensor.dims[0] % block_values != 0) {
    return fail(fmt::format("rows of {} values are no multiple of the {} values of a {} block",
                            tensor.dims[0], block_values, tensor_type_name(type)));
  }
  AKV_ASSIGN_OR_RETURN(const uint64_t offset, take<uint64_t>());
  if (offset % alignment_ != 0) {
    return fail(fmt::format("offset {} is not aligned to {}", offset, alignment_));
  }
  const uint64_t size = elements / block_values * kernels::block_bytes(tensor.type);
  // The data's start is not known yet: only the size is kept, placed below.
  if (size > bytes_.size()) return fail(fmt::format("{} bytes exceed the file", size));
  tensor.data = bytes_.first(size);
  file.tensors_.push_back(tensor);
  offsets_.push_back(offset);
  return {};
}

Status GgufParser::place_tensors(GgufFile& file) {
  const uint64_t data_begin = (at_ + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t data_size = data_begin <= bytes_.size() ? bytes_.size() - data_begin : 0;
  std::vector<size_t> order(offsets_.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    GgufTensor& tensor = file.tensors_[i];
    const uint64_t size = tensor.data.size();
    if (offsets_[i] > data_size || size > data_size - offsets_[i]) {
      where_ = fmt::format("tensor '{}'", printable(tensor.name));
      return fail(
          fmt::format("bytes [{}, +{}) of the data lie outside its {} bytes: truncated file or a "
                      "wrong offset",
                      offsets_[i], size, data_size));
    }
    tensor.data = bytes_.subspan(data_begin + offsets_[i], size);
  }
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = file.tensors_[order[i - 1]];
    if (offsets_[order[i]] < offsets_[order[i - 1]] + before.data.size()) {
      where_ = fmt::format("tensor '{}'", printable(file.tensors_[order[i]].name));
      return fail(fmt::format("its bytes overlap those of tensor '{}'", printable(before.name)));
    }
  }
  return {};
}

}  // namespace akv::model
