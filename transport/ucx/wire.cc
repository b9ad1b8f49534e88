#include "transport/ucx/wire.h"

#include <algorithm>

#include "common/base/check.h"

namespace akv::transport::wire {
namespace {

constexpr uint16_t kMagic = 0x4b41;  // "AK" in memory
constexpr uint8_t kRecordType = 0x40;
constexpr uint32_t kOnDevice = 1;  // flag of a record header
constexpr size_t kPrefixBytes = 4;

class Writer {
 public:
  template <class T>
  Writer& put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
    return *this;
  }
  Writer& id(const Id128& id) { return put(id.hi).put(id.lo); }
  Writer& text(std::string_view text) {
    text = text.substr(0, kTextMax);
    put(static_cast<uint16_t>(text.size()));
    out_.append(text);
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads zeros past the end and remembers it, so that a decoder checks once.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    T value = 0;
    if (sizeof(T) > bytes_.size() - at_) {
      short_ = true;
      at_ = bytes_.size();
      return value;
    }
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(bytes_[at_ + i]) << (8 * i));
    }
    at_ += sizeof(T);
    return value;
  }
  Id128 id() {
    Id128 id;
    id.hi = get<uint64_t>();
    id.lo = get<uint64_t>();
    return id;
  }
  std::string text() {
    const size_t size = get<uint16_t>();
    if (size > kTextMax || size > bytes_.size() - at_) {
      short_ = true;
      return {};
    }
    std::string out(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
    at_ += size;
    return out;
  }
  bool spent() const { return !short_ && at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool short_ = false;
};

void put_prefix(Writer& out, uint8_t protocol, uint8_t type) {
  out.put(kMagic).put(protocol).put(type);
}

void put_key(Writer& out, const TransferKey& key, bool with_token) {
  out.id(key.transfer);
  if (with_token) out.id(key.token);
  out.put(key.attempt);
}

TransferKey get_key(Reader& in, bool with_token) {
  TransferKey key;
  key.transfer = in.id();
  if (with_token) key.token = in.id();
  key.attempt = in.get<uint32_t>();
  return key;
}

Error malformed(const char* what) {
  return make_error(Code::kDataLoss, std::string("malformed ") + what);
}

Error other_version(uint8_t protocol) {
  return make_error(Code::kMismatch, "state protocol " + std::to_string(protocol) +
                                         ", this end speaks " + std::to_string(kProtocolVersion));
}

bool is_versionless(Type type) {
  return type == Type::kHello || type == Type::kWelcome || type == Type::kRefused ||
         type == Type::kBye;
}

// Peers' texts end up in logs and error messages: control characters do not.
void make_printable(std::string& text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
}

}  // namespace

std::string encode(const Message& m) {
  Writer out;
  put_prefix(out, m.protocol, static_cast<uint8_t>(m.type));
  switch (m.type) {
    case Type::kHello:
    case Type::kWelcome:
      out.text(m.text);
      break;
    case Type::kRefused:
      out.put(m.code).text(m.text);
      break;
    case Type::kOpen:
      put_key(out, m.key, true);
      break;
    case Type::kFinish:
      put_key(out, m.key, true);
      out.put(m.records);
      break;
    case Type::kAbort:
      put_key(out, m.key, true);
      out.put(m.code).text(m.text);
      break;
    case Type::kResult:
      put_key(out, m.key, false);
      out.put(m.code).text(m.text);
      break;
    case Type::kPing:
    case Type::kBye:
      break;
  }
  return out.take();
}

Result<Message> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefixBytes || bytes.size() > kControlBytesMax) return malformed("message");
  Reader in(bytes);
  if (in.get<uint16_t>() != kMagic) return malformed("message");
  Message m;
  m.protocol = in.get<uint8_t>();
  const uint8_t type = in.get<uint8_t>();
  if (type == 0 || type > static_cast<uint8_t>(Type::kLastType)) {
    if (m.protocol != kProtocolVersion) return other_version(m.protocol);
    return malformed("message");
  }
  m.type = static_cast<Type>(type);
  if (m.protocol != kProtocolVersion && !is_versionless(m.type)) return other_version(m.protocol);
  switch (m.type) {
    case Type::kHello:
    case Type::kWelcome:
      m.text = in.text();
      break;
    case Type::kOpen:
      m.key = get_key(in, true);
      break;
    case Type::kFinish:
      m.key = get_key(in, true);
      m.records = in.get<uint32_t>();
      break;
    case Type::kAbort:
      m.key = get_key(in, true);
      m.code = in.get<uint16_t>();
      m.text = in.text();
      break;
    case Type::kResult:
      m.key = get_key(in, false);
      m.code = in.get<uint16_t>();
      m.text = in.text();
      break;
    case Type::kRefused:
      m.code = in.get<uint16_t>();
      m.text = in.text();
      break;
    case Type::kPing:
    case Type::kBye:
      break;
  }
  if (!in.spent()) return malformed("message");
  make_printable(m.text);
  return m;
}

std::string encode(const RecordHeader& header) {
  Writer out;
  put_prefix(out, static_cast<uint8_t>(kProtocolVersion), kRecordType);
  out.put(header.record);
  put_key(out, header.key, true);
  out.put(header.on_device ? kOnDevice : uint32_t{0}).put(header.bytes);
  std::string bytes = out.take();
  bytes.resize(kRecordHeaderBytes, '\0');
  return bytes;
}

Result<RecordHeader> decode_record(std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefixBytes) return malformed("record header");
  Reader in(bytes);
  if (in.get<uint16_t>() != kMagic) return malformed("record header");
  const uint8_t protocol = in.get<uint8_t>();
  if (protocol != kProtocolVersion) return other_version(protocol);
  const uint8_t type = in.get<uint8_t>();
  RecordHeader header;
  header.record = in.get<uint32_t>();
  header.key = get_key(in, true);
  const uint32_t flags = in.get<uint32_t>();
  header.on_device = (flags & kOnDevice) != 0;
  header.bytes = in.get<uint64_t>();
  if (type != kRecordType || (flags & ~kOnDevice) != 0 || !in.spent()) {
    return malformed("record header");
  }
  return header;
}

Error to_error(uint16_t code, std::string text) {
  const bool known = code >= static_cast<uint16_t>(Code::kInvalidArgument) &&
                     code <= static_cast<uint16_t>(Code::kContextLength);
  return make_error(known ? static_cast<Code>(code) : Code::kUnavailable,
                    text.empty() ? "no reason given by the peer" : std::move(text));
}

}  // namespace akv::transport::wire
