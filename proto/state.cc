#include "proto/state.h"

#include <bit>
#include <cstring>

namespace akv::proto {
namespace {

constexpr char kStateMagic[8] = {'A', 'K', 'V', 'S', 'T', 'A', 'T', 'E'};
constexpr uint32_t kRecordMagic = 0x52564b41;  // "AKVR" as its bytes lie
constexpr size_t kFixedHeaderBytes = 176;
constexpr size_t kChecksumBytes = 8;

// Appends little-endian numbers at a moving offset. The caller sized the output.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}
  template <class T>
  void put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_[at_++] = static_cast<std::byte>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff);
    }
  }
  void put_bytes(const void* data, size_t size) {
    std::memcpy(out_.data() + at_, data, size);
    at_ += size;
  }

 private:
  std::span<std::byte> out_;
  size_t at_ = 0;
};

// The mirror image; the caller checked the size.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T get() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= std::to_integer<uint64_t>(in_[at_++]) << (8 * i);
    }
    return static_cast<T>(value);
  }
  void get_bytes(void* data, size_t size) {
    std::memcpy(data, in_.data() + at_, size);
    at_ += size;
  }

 private:
  std::span<const std::byte> in_;
  size_t at_ = 0;
};

void put_options(Writer& w, const StateHeader& h) {
  for (uint8_t x : {h.codec, h.layout, h.coefficient, h.scale, h.scale_type, h.domain, h.ranking,
                    h.widths, h.anchors}) {
    w.put(x);
  }
  for (int i = 0; i < 7; ++i) w.put(uint8_t{0});
  for (uint32_t x : {h.window, h.rho_percent, h.kernel, h.pool}) w.put(x);
  w.put(h.seed);
}

// False if a reserved byte is set: a later version may give it a meaning this reader lacks.
bool get_options(Reader& r, StateHeader& h) {
  for (uint8_t* x : {&h.codec, &h.layout, &h.coefficient, &h.scale, &h.scale_type, &h.domain,
                     &h.ranking, &h.widths, &h.anchors}) {
    *x = r.get<uint8_t>();
  }
  bool reserved_zero = true;
  for (int i = 0; i < 7; ++i) reserved_zero &= r.get<uint8_t>() == 0;
  for (uint32_t* x : {&h.window, &h.rho_percent, &h.kernel, &h.pool}) *x = r.get<uint32_t>();
  h.seed = r.get<uint64_t>();
  return reserved_zero;
}

}  // namespace

const char* state_error_text(StateError error) {
  switch (error) {
    case StateError::kNone:
      return "ok";
    case StateError::kShort:
      return "the bytes are fewer or more than the format says";
    case StateError::kChecksum:
      return "the checksum does not match the bytes";
    case StateError::kMagic:
      return "the magic number is not that of a state or record";
    case StateError::kVersion:
      return "the format version is not one this build reads";
    case StateError::kField:
      return "a field holds a value outside its range";
  }
  return "unknown";
}

size_t state_header_bytes(uint32_t layers) {
  return kFixedHeaderBytes + 8 * static_cast<size_t>(layers) + kChecksumBytes;
}

uint64_t encode_state_header(const StateHeader& header, std::span<std::byte> out,
                             ChecksumFn checksum) {
  Writer w(out);
  w.put_bytes(kStateMagic, sizeof(kStateMagic));
  w.put(kStateVersion);
  w.put(static_cast<uint32_t>(out.size()));
  w.put_bytes(header.model_fingerprint.data(), header.model_fingerprint.size());
  w.put_bytes(header.tokenizer_hash.data(), header.tokenizer_hash.size());
  w.put(header.prompt_hash);
  w.put_bytes(header.parent_state.data(), header.parent_state.size());
  put_options(w, header);
  for (uint32_t x : {header.layers, header.heads, header.kv_heads, header.head_dim}) w.put(x);
  w.put(header.tokens);
  w.put(std::bit_cast<uint64_t>(header.theta));
  for (uint64_t bytes : header.record_bytes) w.put(bytes);
  const uint64_t sum = checksum(out.first(out.size() - kChecksumBytes));
  w.put(sum);
  return sum;
}

StateError decode_state_header(std::span<const std::byte> bytes, ChecksumFn checksum,
                               StateHeader& header, uint64_t* checksum_out) {
  if (bytes.size() < kFixedHeaderBytes + kChecksumBytes) return StateError::kShort;
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  const uint64_t sum = Reader(bytes.subspan(body.size())).get<uint64_t>();
  if (checksum(body) != sum) return StateError::kChecksum;
  Reader r(body);
  char magic[8];
  r.get_bytes(magic, sizeof(magic));
  if (std::memcmp(magic, kStateMagic, sizeof(magic)) != 0) return StateError::kMagic;
  if (r.get<uint32_t>() != kStateVersion) return StateError::kVersion;
  if (r.get<uint32_t>() != bytes.size()) return StateError::kShort;
  StateHeader h;
  r.get_bytes(h.model_fingerprint.data(), h.model_fingerprint.size());
  r.get_bytes(h.tokenizer_hash.data(), h.tokenizer_hash.size());
  h.prompt_hash = r.get<uint64_t>();
  r.get_bytes(h.parent_state.data(), h.parent_state.size());
  if (!get_options(r, h)) return StateError::kField;
  for (uint32_t* x : {&h.layers, &h.heads, &h.kv_heads, &h.head_dim}) *x = r.get<uint32_t>();
  h.tokens = r.get<uint64_t>();
  h.theta = std::bit_cast<double>(r.get<uint64_t>());
  if (h.layers > kMaxStateLayers) return StateError::kField;
  if (bytes.size() != state_header_bytes(h.layers)) return StateError::kShort;
  h.record_bytes.resize(h.layers);
  for (uint64_t& size : h.record_bytes) size = r.get<uint64_t>();
  header = std::move(h);
  *checksum_out = sum;
  return StateError::kNone;
}

void seal_record(const RecordHeader& header, std::span<std::byte> record, ChecksumFn checksum) {
  Writer w(record);
  w.put(uint64_t{0});
  w.put(kRecordMagic);
  w.put(static_cast<uint16_t>(kStateVersion));
  w.put(static_cast<uint16_t>(header.kind));
  w.put(header.layer);
  w.put(header.anchors);
  for (uint64_t x :
       {header.record_bytes, header.key_bytes, header.value_bytes, header.state_checksum}) {
    w.put(x);
  }
  Writer(record).put(checksum(record.subspan(kChecksumBytes)));
}

StateError open_record(std::span<const std::byte> record, ChecksumFn checksum,
                       RecordHeader& header) {
  if (record.size() < kRecordHeaderBytes) return StateError::kShort;
  Reader r(record);
  if (r.get<uint64_t>() != checksum(record.subspan(kChecksumBytes))) return StateError::kChecksum;
  if (r.get<uint32_t>() != kRecordMagic) return StateError::kMagic;
  if (r.get<uint16_t>() != kStateVersion) return StateError::kVersion;
  const uint16_t kind = r.get<uint16_t>();
  if (kind > static_cast<uint16_t>(RecordKind::kAnchorKv)) return StateError::kField;
  RecordHeader h;
  h.kind = static_cast<RecordKind>(kind);
  h.layer = r.get<uint32_t>();
  h.anchors = r.get<uint32_t>();
  for (uint64_t* x : {&h.record_bytes, &h.key_bytes, &h.value_bytes, &h.state_checksum}) {
    *x = r.get<uint64_t>();
  }
  if (h.record_bytes != record.size()) return StateError::kShort;
  header = h;
  return StateError::kNone;
}

}  // namespace akv::proto
