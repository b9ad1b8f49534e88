// Strict safetensors reader (8-byte length, JSON header, tensor bytes): golden files, later
// weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace akv::model {

enum class SafetensorsType {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool
};

struct SafetensorsEntry {
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;       // row-major, slowest first
  std::span<const std::byte> data;  // may be unaligned for its type
  int64_t elements() const;
};

// A file read whole into memory. Checked: header length against the file, JSON shape, each range
// against the data, sizes against shape and type, no gap and no overlap. Immutable, thread-safe.
class Safetensors {
 public:
  // Errors: kNotFound, kIo, kInvalidArgument (names the tensor).
  static Result<Safetensors> read(const std::string& path);
  static Result<Safetensors> parse(std::vector<std::byte> bytes, const std::string& name);

  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Copies of a tensor, for small data: an error where it is absent or of another type.
  Result<std::vector<float>> f32(const std::string& name) const;
  Result<std::vector<int32_t>> i32(const std::string& name) const;

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace akv::model
