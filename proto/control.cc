#include "proto/control.h"

#include "proto/control_fields.h"

namespace akv::proto {
namespace {

constexpr int kMaxDepth = 8;

// Rules between fields, beyond type and range.
template <class M>
void check(FieldReader& reader, const M& m) {
  if constexpr (requires { m.ref; })
    if (m.ref.id.empty()) reader.fail("id", "is empty");
  if constexpr (requires { m.token_ids; })
    if (m.token_ids.empty()) reader.fail("blob", "holds no token ids");
}

template <class M>
Decoded<M> decode_body(std::string_view body, std::string_view blob) {
  Decoded<M> decoded;
  const std::optional<Json> json = parse_json(body, kMaxDepth, &decoded.error);
  if (!json) return decoded;
  FieldReader reader(*json, blob);
  M message;
  if (reader.error().empty()) fields(reader, message);
  if (reader.error().empty()) check(reader, message);
  decoded.error = reader.error();
  if (decoded.error.empty()) decoded.value = std::move(message);
  return decoded;
}

}  // namespace

template <class M>
Frames encode(const M& message) {
  FieldWriter writer;
  fields(writer, message);
  return {std::string(type_of<M>()), dump_json(writer.json()), writer.take_blob()};
}

template <class M>
Decoded<M> decode(std::string_view type, std::string_view body, std::string_view blob) {
  if (type == type_of<M>()) return decode_body<M>(body, blob);
  return {{}, "is not a message of type " + std::string(type_of<M>())};
}

#define AKV_CONTROL_MESSAGE(M, NAME)   \
  template <>                          \
  std::string_view type_of<M>() {      \
    return NAME;                       \
  }                                    \
  template Frames encode<M>(const M&); \
  template Decoded<M> decode<M>(std::string_view, std::string_view, std::string_view);

AKV_CONTROL_MESSAGE(Hello, "HELLO")
AKV_CONTROL_MESSAGE(Welcome, "WELCOME")
AKV_CONTROL_MESSAGE(Refused, "REFUSED")
AKV_CONTROL_MESSAGE(Bye, "BYE")
AKV_CONTROL_MESSAGE(Prefill, "PREFILL")
AKV_CONTROL_MESSAGE(Cancel, "CANCEL")
AKV_CONTROL_MESSAGE(Release, "RELEASE")
AKV_CONTROL_MESSAGE(Resend, "RESEND")
AKV_CONTROL_MESSAGE(Queued, "QUEUED")
AKV_CONTROL_MESSAGE(Started, "STARTED")
AKV_CONTROL_MESSAGE(FirstToken, "FIRST_TOKEN")
AKV_CONTROL_MESSAGE(Sent, "SENT")
AKV_CONTROL_MESSAGE(Failed, "FAILED")
AKV_CONTROL_MESSAGE(Open, "OPEN")
AKV_CONTROL_MESSAGE(Start, "START")
AKV_CONTROL_MESSAGE(Close, "CLOSE")
AKV_CONTROL_MESSAGE(Opened, "OPENED")
AKV_CONTROL_MESSAGE(Landed, "LANDED")
AKV_CONTROL_MESSAGE(Tokens, "TOKENS")
AKV_CONTROL_MESSAGE(Done, "DONE")
#undef AKV_CONTROL_MESSAGE

std::string encode_load(const Load& load) {
  FieldWriter writer;
  fields(writer, load);
  return dump_json(writer.json());
}

Decoded<Load> decode_load(std::string_view body) { return decode_body<Load>(body, {}); }

std::string incompatibility(const Hello& mine, const Hello& theirs) {
  std::string differences;
  const auto compare = [&](const char* what, const std::string& a, const std::string& b) {
    if (a == b) return;
    if (!differences.empty()) differences += "; ";
    differences += std::string(what) + ": mine " + a + ", theirs " + b;
  };
  compare("protocol", std::to_string(mine.protocol), std::to_string(theirs.protocol));
  compare("state format", std::to_string(mine.state_format), std::to_string(theirs.state_format));
  compare("model fingerprint", mine.model_fingerprint, theirs.model_fingerprint);
  compare("tokenizer", mine.tokenizer_hash, theirs.tokenizer_hash);
  return differences;
}

}  // namespace akv::proto
