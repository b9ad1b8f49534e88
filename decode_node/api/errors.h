// The project's errors in the API's terms: status, type, code, and advice on retrying.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/net/http_server.h"
#include "decode_node/api/service.h"
#include "proto/api.h"

namespace akv::decode::api {

proto::ApiError api_error(const Error& error);
// Headers that tell a client whether and when to try again.
net::HttpHeaders retry_headers(const Error& error, int64_t retry_after_ms);
net::HttpResponse error_response(const proto::ApiError& error, net::HttpHeaders headers = {});
// RequestRecord::outcome of an answer with this status.
std::string outcome_of(int status);

}  // namespace akv::decode::api
