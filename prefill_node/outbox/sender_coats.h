// What a prefill node may put around its sender: a rate limit for shared networks, and faults for
// drills, so that operators and tests see what a bad link does before a real one does it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "transport/transport.h"

namespace akv::prefill {

struct SenderCoats {
  uint64_t rate_bytes_per_s = 0;  // 0: no limit
  int64_t delay_ms = 0;           // before each record
  // corrupt=RECORD[:CHANNELS], cut=RECORDS[:CHANNELS] (the receiver is told),
  // stall=RECORDS[:CHANNELS] (it is not); CHANNELS: only the first so many transfers. Empty: none.
  std::string fault;
};

// kInvalidArgument: a fault of another form.
Result<std::unique_ptr<transport::Sender>> wrap_sender(std::unique_ptr<transport::Sender> sender,
                                                       const SenderCoats& coats);
Status validate(const SenderCoats& coats);

}  // namespace akv::prefill
