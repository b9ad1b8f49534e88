// API keys from a file: one a line, "#" comments.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/result.h"
#include "common/net/http_server.h"

namespace akv::decode::api {

// [thread-safe]
class ApiKeys {
 public:
  // path empty: everyone is let in.
  explicit ApiKeys(std::string path) : path_(std::move(path)) {}
  // kInvalidArgument when the file is unreadable or holds no key; the keys of before stay.
  Status reload();
  // By "Authorization: Bearer KEY" or "X-Api-Key: KEY". The time taken tells nothing about keys.
  bool allows(const net::HttpRequest& request) const;

 private:
  const std::string path_;
  mutable std::mutex mutex_;
  std::vector<Sha256Digest> digests_;  // guarded by mutex_
};

}  // namespace akv::decode::api
