// Internal to common/model: the one pass over a GGUF's head that checks everything.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/model/gguf.h"

namespace akv::model {

// A cursor over hostile bytes: each read checks what is left first. After an error the parser is
// spent; `where` names the key or tensor that is being read.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string name);
  // Runs once. `file` gets everything but its bytes.
  Status parse(GgufFile& file);
  static std::unique_ptr<GgufFile> make_file() { return std::unique_ptr<GgufFile>(new GgufFile()); }
  static void attach(GgufFile& file, std::span<const std::byte> bytes, std::string name);

 private:
  Status parse_header(GgufFile& file, uint64_t* tensors, uint64_t* entries);
  Status parse_metadata(GgufFile& file, uint64_t entries);
  Status parse_tensor_table(GgufFile& file, uint64_t tensors);
  Status parse_tensor(GgufFile& file);
  Status place_tensors(GgufFile& file);
  Result<GgufValue> parse_value(GgufType type, int depth);
  Result<GgufValue> parse_array(int depth);
  Result<std::string_view> parse_string(uint64_t max_bytes);
  Result<GgufType> parse_type();
  template <class T>
  Result<T> take();
  uint64_t left() const { return bytes_.size() - at_; }
  Error fail(std::string_view what) const;
  Error unsupported(std::string_view what) const;

  std::span<const std::byte> bytes_;
  std::string name_;
  std::string where_ = "header";
  size_t at_ = 0;
  uint64_t alignment_ = 32;
  std::vector<uint64_t> offsets_;  // of each tensor, from the start of the data
};

}  // namespace akv::model
