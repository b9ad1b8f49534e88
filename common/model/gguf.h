// GGUF v2/v3 reader over a memory map: nothing is expanded and nothing is trusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "common/base/file_map.h"
#include "common/base/result.h"
#include "kernels/types.h"

namespace akv::model {

// GGUF's own numbers of its metadata value types.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// An array inside the file, as checked bytes: every element was walked once at open, so readers
// below cannot run out of it. A view; lives as long as the file.
struct GgufArray {
  GgufType type = GgufType::kU8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;

  // Elements as strings / integers / floats; an error where the element type is another.
  Result<std::vector<std::string_view>> strings() const;
  Result<std::vector<int64_t>> integers() const;
  Result<std::vector<float>> floats() const;
};

// Integers keep their sign class; f32 and f64 are double.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

// One tensor: dims[0] is the fastest (GGUF order), so a weight [rows, cols] has dims {cols, rows}.
struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  int n_dims = 0;
  std::array<uint64_t, 4> dims{1, 1, 1, 1};
  std::span<const std::byte> data;  // aligned to general.alignment within the file

  std::string shape() const;  // "[576, 49152]", for messages
};

// A parsed GGUF file. Every offset, count, type and length was checked against the file's size
// before use: metadata keys and tensor names are unique, tensors are of types that we read,
// aligned, inside the file and do not overlap. Immutable after open: all const members are
// thread-safe.
class GgufFile {
 public:
  // Maps and parses `path`. Errors: kNotFound / kIo (open, map), kInvalidArgument (malformed; the
  // message names the key or tensor, what it has and what is taken), kUnsupported (version, byte
  // order, tensor type).
  static Result<std::unique_ptr<const GgufFile>> open(const std::string& path);
  // Parses bytes that the caller keeps alive; `name` stands in messages. For tests and the fuzzer.
  static Result<std::unique_ptr<const GgufFile>> parse(std::span<const std::byte> bytes,
                                                       std::string name);
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  // The file's map, for FileMap::move_to_huge_pages(); empty after parse().
  const FileMap& map() const { return map_; }

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  // Header, metadata and tensor table: the bytes before the (padded) tensor data.
  std::span<const std::byte> head_bytes() const { return bytes_.first(head_size_); }
  uint64_t file_bytes() const { return bytes_.size(); }

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const GgufTensor* find_tensor(std::string_view name) const;          // null: absent

  struct Entry {
    std::string_view key;
    GgufValue value;
    std::span<const std::byte> bytes;  // type and value as stored, for hashing
  };
  const std::vector<Entry>& metadata() const { return metadata_; }  // in the file's order
  const GgufValue* find(std::string_view key) const;                // null: absent

  // Typed access. Absent key: kInvalidArgument naming the key (get_*) or nullopt (find_*); a value
  // of another type is an error in both. Integers of any width and sign are taken where >= 0.
  Result<uint64_t> get_uint(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<GgufArray> get_array(std::string_view key) const;
  Result<std::optional<uint64_t>> find_uint(std::string_view key) const;
  Result<std::optional<double>> find_float(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;
  Result<std::optional<GgufArray>> find_array(std::string_view key) const;

 private:
  friend class GgufParser;
  GgufFile() = default;

  std::string name_;
  std::span<const std::byte> bytes_;
  FileMap map_;  // empty: the bytes are the caller's
  size_t head_size_ = 0;
  uint32_t version_ = 0;
  std::vector<Entry> metadata_;
  std::unordered_map<std::string_view, size_t> metadata_index_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

// "Q4_1"; "type 23" for a number that we do not read.
std::string tensor_type_name(uint32_t type);
// True for the types of kernels/types.h.
bool tensor_type_known(uint32_t type);

}  // namespace akv::model
