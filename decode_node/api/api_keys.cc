#include "decode_node/api/api_keys.h"

#include <fstream>
#include <string_view>

#include "common/base/ids.h"

namespace akv::decode::api {
namespace {

Sha256Digest digest_of(std::string_view key) {
  Sha256 hash;
  hash.update(key.data(), key.size());
  return hash.finish();
}

std::string_view bytes_of(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

// "bearer" in any case, then the key.
std::string_view presented_key(const net::HttpRequest& request) {
  if (const std::string* header = request.header("authorization")) {
    std::string_view text = *header;
    constexpr std::string_view kScheme = "bearer ";
    bool bearer = text.size() > kScheme.size();
    for (size_t i = 0; bearer && i < kScheme.size(); ++i) bearer = (text[i] | 0x20) == kScheme[i];
    if (bearer) return trimmed(text.substr(kScheme.size()));
  }
  const std::string* header = request.header("x-api-key");
  return header == nullptr ? std::string_view{} : trimmed(*header);
}

}  // namespace

Status ApiKeys::reload() {
  if (path_.empty()) return {};
  std::ifstream file(path_);
  std::vector<Sha256Digest> digests;
  for (std::string line; std::getline(file, line);) {
    const std::string_view key = trimmed(line);
    if (!key.empty() && key.front() != '#') digests.push_back(digest_of(key));
  }
  if (file.bad() || digests.empty())
    return make_error(Code::kInvalidArgument, "no API key can be read from " + path_,
                      "api-key-file");
  const std::lock_guard lock(mutex_);
  digests_ = std::move(digests);
  return {};
}

bool ApiKeys::allows(const net::HttpRequest& request) const {
  if (path_.empty()) return true;
  // Digests have one length, so that not even the length of a key shows.
  const Sha256Digest digest = digest_of(presented_key(request));
  bool found = false;
  const std::lock_guard lock(mutex_);
  for (const Sha256Digest& known : digests_)
    found |= equal_constant_time(bytes_of(known), bytes_of(digest));
  return found;
}

}  // namespace akv::decode::api
