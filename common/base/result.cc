#include "common/base/result.h"

namespace akv {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kCancelled:
      return "cancelled";
    case Code::kDataLoss:
      return "data_loss";
    case Code::kMismatch:
      return "mismatch";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kIo:
      return "io";
    case Code::kAddressInUse:
      return "address_in_use";
    case Code::kInternal:
      return "internal";
    case Code::kContextLength:
      return "context_length_exceeded";
  }
  return "unknown";
}

}  // namespace akv
