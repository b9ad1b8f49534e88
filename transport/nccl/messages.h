// The records that announce what goes over NCCL, and the ids of the landing they go to. Grammar:
// README.md. Plain bytes, no NCCL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "transport/nccl/nccl.h"

namespace akv::transport::nccl {

// Records of the announcing transfer: hello, verdict, then one ticket for each record of the state.
inline constexpr uint32_t kHelloRecord = 0;
inline constexpr uint32_t kVerdictRecord = 1;
inline constexpr uint32_t kFirstTicket = 2;

struct Hello {
  uint32_t nccl_version = 0;
  Id128 sender;             // this Sender, for its life
  uint64_t generation = 0;  // of the communicator between it and the receiver
  NcclUniqueId id;
};
inline constexpr size_t kHelloBytes = 4 + 4 + 16 + 8 + 128;
std::array<std::byte, kHelloBytes> encode(const Hello& hello);
// kDataLoss: not a hello; kMismatch: of another form.
Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes);

struct Ticket {
  uint64_t number = 0;  // of the message in its pair
  uint64_t bytes = 0;
};
inline constexpr size_t kTicketBytes = 16;
std::array<std::byte, kTicketBytes> encode(const Ticket& ticket);
Ticket decode_ticket(std::span<const std::byte, kTicketBytes> bytes);

enum class Verdict : uint8_t {
  kSent = 1,    // every record has left over NCCL
  kPlain = 2,   // the records come over the wrapped transport instead
  kFailed = 3,  // neither: the sender's pair broke half way
};
inline constexpr size_t kVerdictBytes = 1;

// The announcing transfer's id and token from those of the landing, for both ends alike.
Id128 announcing(const Id128& id);

// A receiver's item in the extension of its landings' addresses: "nccl/VERSION/INSTANCE".
struct Capability {
  uint32_t nccl_version = 0;
  Id128 receiver;
};
std::string encode(const Capability& capability);
// Nothing where an extension has no such item.
std::optional<Capability> decode_capability(const std::string& text);

}  // namespace akv::transport::nccl
