#include "common/net/curve.h"

#include <zmq.h>

#include <fstream>
#include <sstream>

#include "common/base/units.h"

namespace akv::net {
namespace {

constexpr size_t kKeyChars = 40;
constexpr size_t kKeyBytes = 32;

// Words of the lines of a key file. Z85 has '#' in its alphabet, so only "# " begins a comment.
Result<std::vector<std::vector<std::string>>> read_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) return make_error(Code::kIo, "cannot read the key file " + path);
  std::vector<std::vector<std::string>> lines;
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("# ") || line == "#") continue;
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (!found.empty()) lines.push_back(std::move(found));
  }
  if (file.bad()) return make_error(Code::kIo, "cannot read the key file " + path);
  return lines;
}

Error bad_line(const std::string& path, const std::string& takes) {
  // The line itself may hold a secret.
  return make_error(Code::kInvalidArgument, "the key file " + path + " takes " + takes);
}

}  // namespace

bool valid_curve_key(const std::string& key) {
  unsigned char raw[kKeyBytes];
  return key.size() == kKeyChars && zmq_z85_decode(raw, key.c_str()) != nullptr;
}

Result<CurveKeys> read_curve_keys(const std::string& path) {
  AKV_ASSIGN_OR_RETURN(const auto lines, read_lines(path));
  CurveKeys keys;
  for (const auto& words : lines) {
    if (words.size() == 2 && words[0] == "public")
      keys.public_key = words[1];
    else if (words.size() == 2 && words[0] == "secret")
      keys.secret_key = words[1];
    else
      return bad_line(path, "lines \"public KEY\" and \"secret KEY\"");
  }
  char derived[kKeyChars + 1] = {};
  if (!valid_curve_key(keys.public_key) || !valid_curve_key(keys.secret_key))
    return bad_line(path, "\"public KEY\" and \"secret KEY\", keys of 40 Z85 characters");
  if (zmq_curve_public(derived, keys.secret_key.c_str()) == 0 && keys.public_key != derived)
    return make_error(Code::kInvalidArgument, "the keys in " + path + " are not a pair");
  return keys;
}

Result<CurveKeys> make_curve_keys() {
  char public_key[kKeyChars + 1] = {};
  char secret_key[kKeyChars + 1] = {};
  if (zmq_curve_keypair(public_key, secret_key) != 0)
    return make_error(Code::kUnsupported, "this libzmq has no CURVE");
  return CurveKeys{public_key, secret_key};
}

Result<std::vector<CurvePeer>> read_curve_peers(const std::string& path) {
  AKV_ASSIGN_OR_RETURN(const auto lines, read_lines(path));
  std::vector<CurvePeer> peers;
  for (const auto& words : lines) {
    if (words.size() > 2 || !valid_curve_key(words[0]))
      return bad_line(path, "\"KEY [HOST:PORT]\" lines, keys of 40 Z85 characters");
    CurvePeer peer{words[0], words.size() == 2 ? words[1] : ""};
    if (!peer.address.empty()) AKV_RETURN_IF_ERROR(parse_host_port(peer.address));
    peers.push_back(std::move(peer));
  }
  return peers;
}

Status check_curve(const CurveOptions& options) {
  if (zmq_has("curve") != 1) return make_error(Code::kUnsupported, "this libzmq has no CURVE");
  if (!valid_curve_key(options.keys.public_key) || !valid_curve_key(options.keys.secret_key))
    return make_error(Code::kInvalidArgument, "a CURVE key is not 40 Z85 characters");
  for (const CurvePeer& peer : options.peers)
    if (!valid_curve_key(peer.public_key))
      return make_error(Code::kInvalidArgument, "a peer's CURVE key is not 40 Z85 characters");
  return {};
}

void CurveGate::set(const CurveOptions& options) {
  options_ = options;
  allowed_.clear();
  allowed_.insert(options.keys.public_key);
  for (const CurvePeer& peer : options.peers) allowed_.insert(peer.public_key);
}

bool CurveGate::allows(std::string_view raw_key) const {
  if (raw_key.size() != kKeyBytes) return false;
  char text[kKeyChars + 1] = {};
  zmq_z85_encode(text, reinterpret_cast<const uint8_t*>(raw_key.data()), kKeyBytes);
  return allowed_.contains(text);
}

std::vector<std::string> CurveGate::answer(const std::vector<std::string>& request) const {
  // version, request id, domain, address, routing id, mechanism, credentials
  if (request.size() < 6 || request[0] != "1.0") return {};
  const bool allowed = request.size() == 7 && request[5] == "CURVE" && allows(request[6]);
  // version, request id, status, text, user id, metadata
  return {"1.0", request[1], allowed ? "200" : "400", allowed ? "OK" : "unknown key", "", ""};
}

const std::string& CurveGate::server_key(const std::string& address) const {
  for (const CurvePeer& peer : options_.peers)
    if (peer.address == address) return peer.public_key;
  return options_.keys.public_key;
}

}  // namespace akv::net
