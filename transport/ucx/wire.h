// What the two ends of a connection say to each other. Grammar and byte order: README.md here.
// Plain bytes in, plain structs out; no UCX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "transport/landing_table.h"

namespace akv::transport::wire {

// Active message ids: control messages travel in the payload, record headers in the header.
inline constexpr unsigned kControlAm = 1;
inline constexpr unsigned kRecordAm = 2;

enum class Type : uint8_t {
  kHello = 1,    // sender -> receiver, first: text = UCX version
  kWelcome = 2,  // receiver -> sender: text = UCX version
  kRefused = 3,  // receiver -> sender, instead of kWelcome: code, text
  kOpen = 4,     // sender: key
  kFinish = 5,   // sender: key, records sent
  kAbort = 6,    // sender: key, code, text
  kResult = 7,   // receiver: key without token, code (kOk: all landed), text
  kPing = 8,     // both
  kBye = 9,      // both: this end closes on purpose
  kLastType = kBye,
};

inline constexpr uint16_t kOk = 0;
inline constexpr size_t kTextMax = 512;          // longer texts are cut by encode
inline constexpr size_t kControlBytesMax = 600;  // longer messages are refused

// Only the fields of the type are meaningful.
struct Message {
  Type type = Type::kPing;
  uint8_t protocol = static_cast<uint8_t>(kProtocolVersion);
  TransferKey key;
  uint32_t records = 0;
  uint16_t code = kOk;
  std::string text;
};

std::string encode(const Message& message);
// kDataLoss: not a message; kMismatch: of another protocol version (kHello, kWelcome, kRefused and
// kBye keep their form in every version and are returned whatever their version is).
Result<Message> decode(std::span<const std::byte> bytes);

struct RecordHeader {
  TransferKey key;
  uint32_t record = 0;
  uint64_t bytes = 0;
  // The sender reads the record from device memory, which it does where the landing offered its own
  // (Receiver::extension): the record lands there. Receivers before that offer refuse the flag.
  bool on_device{};
};
inline constexpr size_t kRecordHeaderBytes = 56;

std::string encode(const RecordHeader& header);
// kDataLoss or kMismatch as above.
Result<RecordHeader> decode_record(std::span<const std::byte> bytes);

// The error that a peer's code and text stand for; an unknown code is kUnavailable.
Error to_error(uint16_t code, std::string text);

}  // namespace akv::transport::wire
