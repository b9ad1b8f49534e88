// Internal to net: CURVE keys of sockets, and the ZAP check of who may connect (RFC 27).
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/net/control_loop.h"

namespace akv::net {

// Decides over client keys. Not thread-safe: lives on the control thread.
class CurveGate {
 public:
  // Our own key is always allowed: who proves its secret half is one of us.
  void set(const CurveOptions& options);
  // Answer to a ZAP request (its frames in order); empty for a malformed one, which is not
  // answered.
  std::vector<std::string> answer(const std::vector<std::string>& request) const;
  // The key that the server at address must prove, Z85.
  const std::string& server_key(const std::string& address) const;

 private:
  bool allows(std::string_view raw_key) const;

  CurveOptions options_;
  std::unordered_set<std::string> allowed_;  // Z85
};

// A Z85 key of 40 characters that decodes.
bool valid_curve_key(const std::string& key);
Status check_curve(const CurveOptions& options);

}  // namespace akv::net
