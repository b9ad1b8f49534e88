#include "common/net/control_wire.h"

#include <algorithm>

namespace akv::net {
namespace {

constexpr std::string_view kMagic("AKV\x01", 4);
constexpr size_t kMaxTypeBytes = 32;

template <class T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

template <class T>
T get(std::string_view& in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<unsigned char>(in[i])) << (8 * i);
  in.remove_prefix(sizeof(T));
  return value;
}

}  // namespace

bool valid_type(std::string_view type) {
  return !type.empty() && type.size() <= kMaxTypeBytes &&
         std::all_of(type.begin(), type.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
         });
}

std::string encode_header(const Ping& ping) {
  std::string header = std::string(kMagic) + 'P';
  put(header, ping.interval_ms);
  return header;
}

std::string encode_header(const Pong& pong) {
  std::string header = std::string(kMagic) + 'Q';
  put(header, pong.incarnation);
  put(header, pong.session);
  return header;
}

std::string encode_header(std::string_view type) {
  return std::string(kMagic) + 'M' + std::string(type);
}

std::optional<WireMessage> decode_frames(std::vector<std::string>&& frames,
                                         const ControlLoopOptions& options) {
  if (frames.size() < 2 || frames.size() > 3) return std::nullopt;
  if (frames[1].size() > options.max_body_bytes) return std::nullopt;
  if (frames.size() == 3 && frames[2].size() > options.max_blob_bytes) return std::nullopt;
  std::string_view header = frames[0];
  if (!header.starts_with(kMagic) || header.size() < kMagic.size() + 1) return std::nullopt;
  header.remove_prefix(kMagic.size());
  WireMessage wire;
  wire.kind = static_cast<WireMessage::Kind>(header[0]);
  header.remove_prefix(1);
  switch (wire.kind) {
    case WireMessage::Kind::kPing:
      if (header.size() != 4 || frames.size() != 2) return std::nullopt;
      wire.ping.interval_ms = get<uint32_t>(header);
      break;
    case WireMessage::Kind::kPong:
      if (header.size() != 16 || frames.size() != 2) return std::nullopt;
      wire.pong.incarnation = get<uint64_t>(header);
      wire.pong.session = get<uint64_t>(header);
      break;
    case WireMessage::Kind::kMessage:
      if (!valid_type(header)) return std::nullopt;
      wire.message.type = header;
      if (frames.size() == 3) wire.message.blob = std::move(frames[2]);
      break;
    default:
      return std::nullopt;
  }
  wire.message.body = std::move(frames[1]);
  return wire;
}

}  // namespace akv::net
