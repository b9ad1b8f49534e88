// The state format: what a compressed prompt looks like on the wire, in memory and on disk. Little-
// endian, fixed offsets, version in the header; grammar and worked example in proto/README.md.
// This file knows bytes only: what the numbers mean is common/kv's business.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace akv::proto {

inline constexpr uint32_t kStateVersion = 1;
inline constexpr uint32_t kMaxStateLayers = 4096;
inline constexpr size_t kRecordHeaderBytes = 56;

// A 64-bit checksum of bytes (XXH3-64 in this project), given by the caller.
using ChecksumFn = uint64_t (*)(std::span<const std::byte>);

enum class RecordKind : uint16_t { kDense = 0, kAnchorKv = 1 };

struct StateHeader {
  std::array<uint8_t, 32> model_fingerprint{};
  std::array<uint8_t, 32> tokenizer_hash{};
  uint64_t prompt_hash = 0;
  // Reserved for a state that continues another one (a cached prefix); zero in this version.
  std::array<uint8_t, 16> parent_state{};
  uint8_t codec = 0;  // 0 none, 1 anchorkv
  // Options by number, in the order of kv::CodecOptions; zero for a dense state.
  uint8_t layout = 0, coefficient = 0, scale = 0, scale_type = 0, domain = 0, ranking = 0,
          widths = 0, anchors = 0;
  uint32_t window = 0, rho_percent = 0, kernel = 0, pool = 0;
  uint64_t seed = 0;
  uint32_t layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  uint64_t tokens = 0;
  double theta = 0;                    // as requested
  std::vector<uint64_t> record_bytes;  // [layers]
  bool operator==(const StateHeader&) const = default;
};

struct RecordHeader {
  RecordKind kind = RecordKind::kDense;
  uint32_t layer = 0;
  uint32_t anchors = 0;  // k, 0 if dense
  uint64_t record_bytes = 0;
  uint64_t key_bytes = 0;    // bytes set aside for key residuals
  uint64_t value_bytes = 0;  // the same for value residuals
  uint64_t state_checksum = 0;
  bool operator==(const RecordHeader&) const = default;
};

enum class StateError { kNone, kShort, kChecksum, kMagic, kVersion, kField };
// One sentence for a log line.
const char* state_error_text(StateError error);

size_t state_header_bytes(uint32_t layers);

// Writes exactly state_header_bytes(header.record_bytes.size()) bytes; returns the checksum.
uint64_t encode_state_header(const StateHeader& header, std::span<std::byte> out,
                             ChecksumFn checksum);
// Checks size, checksum, magic, version and that reserved bytes are zero, in this order. `header`
// and *checksum_out are set only on kNone.
StateError decode_state_header(std::span<const std::byte> bytes, ChecksumFn checksum,
                               StateHeader& header, uint64_t* checksum_out);

// Writes the header of a record whose payload is already in place and seals the whole record:
// record.size() == header.record_bytes.
void seal_record(const RecordHeader& header, std::span<std::byte> record, ChecksumFn checksum);
// The same checks for a whole record, checksum first.
StateError open_record(std::span<const std::byte> record, ChecksumFn checksum,
                       RecordHeader& header);

}  // namespace akv::proto
