#include "prefill_node/outbox/sender_coats.h"

#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "transport/wrappers/wrappers.h"

namespace akv::prefill {
namespace {

struct Fault {
  std::string_view kind;
  uint32_t records = 0;
  uint64_t channels = UINT64_MAX;
};

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Result<Fault> parse_fault(const std::string& text) {
  Fault fault;
  const std::string_view all = text;
  const size_t equals = all.find('=');
  fault.kind = all.substr(0, equals);
  const bool known = fault.kind == "corrupt" || fault.kind == "cut" || fault.kind == "stall";
  bool ok = known && equals != std::string_view::npos;
  if (ok) {
    const std::string_view numbers = all.substr(equals + 1);
    const size_t colon = numbers.find(':');
    ok = parse_number(numbers.substr(0, colon), fault.records);
    if (colon != std::string_view::npos) {
      ok = ok && parse_number(numbers.substr(colon + 1), fault.channels);
    }
  }
  if (ok) return fault;
  return make_error(Code::kInvalidArgument,
                    fmt::format("state-fault: got '{}', takes corrupt=, cut= or stall= with "
                                "RECORD[:CHANNELS]",
                                text),
                    "state-fault");
}

}  // namespace

Status validate(const SenderCoats& coats) {
  if (coats.fault.empty()) return {};
  const auto fault = parse_fault(coats.fault);
  if (!fault.ok()) return fault.error();
  return {};
}

Result<std::unique_ptr<transport::Sender>> wrap_sender(std::unique_ptr<transport::Sender> sender,
                                                       const SenderCoats& coats) {
  using transport::Cut;
  if (!coats.fault.empty()) {
    AKV_ASSIGN_OR_RETURN(const Fault fault, parse_fault(coats.fault));
    if (fault.kind == "corrupt") {
      sender = transport::corrupt_record(std::move(sender), fault.records, 4099, fault.channels);
    } else {
      const Cut cut = fault.kind == "cut" ? Cut::kCancel : Cut::kSilent;
      sender = transport::cut_after_records(std::move(sender), fault.records, cut, fault.channels);
    }
  }
  if (coats.delay_ms > 0) sender = transport::delay_sends(std::move(sender), coats.delay_ms);
  if (coats.rate_bytes_per_s > 0) {
    sender = transport::limit_rate(std::move(sender), coats.rate_bytes_per_s);
  }
  return sender;
}

}  // namespace akv::prefill
