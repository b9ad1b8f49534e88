#include "transport/nccl/messages.h"

#include <charconv>
#include <cstring>

#include "transport/extension.h"

namespace akv::transport::nccl {
namespace {

constexpr uint32_t kMagic = 0x314e4b41;  // "AKN1" in memory
constexpr std::string_view kPrefix = "nccl/";

template <class T>
std::byte* put(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
  return to + sizeof(T);
}

template <class T>
T get(const std::byte*& from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(from[i]) << (8 * i));
  }
  from += sizeof(T);
  return value;
}

}  // namespace

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> out{};
  std::byte* to = put(out.data(), kMagic);
  to = put(to, hello.nccl_version);
  to = put(put(to, hello.sender.hi), hello.sender.lo);
  to = put(to, hello.generation);
  std::memcpy(to, hello.id.bytes.data(), hello.id.bytes.size());
  return out;
}

Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  const std::byte* from = bytes.data();
  if (get<uint32_t>(from) != kMagic) return make_error(Code::kDataLoss, "malformed NCCL hello");
  Hello hello;
  hello.nccl_version = get<uint32_t>(from);
  hello.sender.hi = get<uint64_t>(from);
  hello.sender.lo = get<uint64_t>(from);
  hello.generation = get<uint64_t>(from);
  std::memcpy(hello.id.bytes.data(), from, hello.id.bytes.size());
  return hello;
}

std::array<std::byte, kTicketBytes> encode(const Ticket& ticket) {
  std::array<std::byte, kTicketBytes> out{};
  put(put(out.data(), ticket.number), ticket.bytes);
  return out;
}

Ticket decode_ticket(std::span<const std::byte, kTicketBytes> bytes) {
  const std::byte* from = bytes.data();
  Ticket ticket;
  ticket.number = get<uint64_t>(from);
  ticket.bytes = get<uint64_t>(from);
  return ticket;
}

Id128 announcing(const Id128& id) {
  // Any fixed change will do: both are random, and a token stays as secret as it was.
  return {id.hi ^ 0x4e43434c414b5631ull, id.lo ^ 0x7469636b65747321ull};
}

std::string encode(const Capability& capability) {
  return std::string(kPrefix) + std::to_string(capability.nccl_version) + '/' +
         capability.receiver.hex();
}

std::optional<Capability> decode_capability(const std::string& text) {
  const auto item = extension_item(text, kPrefix);
  if (!item) return std::nullopt;
  const char* const end = item->data() + item->size();
  Capability out;
  const auto [slash, error] = std::from_chars(item->data(), end, out.nccl_version);
  if (error != std::errc{} || slash == end || *slash != '/') return std::nullopt;
  const auto id = Id128::from_hex(std::string_view(slash + 1, end));
  if (!id) return std::nullopt;
  out.receiver = *id;
  return out;
}

}  // namespace akv::transport::nccl
