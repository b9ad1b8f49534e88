// Internal to net: responses as bytes of HTTP/1.1.
#pragma once

#include <string>
#include <string_view>

#include "common/net/http_server.h"

namespace akv::net {

struct HttpFraming {
  bool http10 = false;
  bool keep_alive = false;
  bool head = false;  // answer to HEAD: no body
};

std::string http_response(const HttpResponse& response, HttpFraming framing);
std::string http_stream_head(const HttpHeaders& headers, HttpFraming framing);
std::string http_chunk(std::string_view bytes);

}  // namespace akv::net
