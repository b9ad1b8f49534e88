#include "common/net/http_format.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace akv::net {
namespace {

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40] = {};
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text;
}

// Values may echo what a client sent: a line break in one would let it write our headers.
void add_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value)
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  out += "\r\n";
}

std::string start(int status, HttpFraming framing) {
  std::string out = framing.http10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  out += std::to_string(status) + " " + reason_of(status) + "\r\n";
  add_header(out, "Date", http_date());
  add_header(out, "Connection", framing.keep_alive ? "keep-alive" : "close");
  return out;
}

}  // namespace

std::string http_response(const HttpResponse& response, HttpFraming framing) {
  std::string out = start(response.status, framing);
  if (!response.content_type.empty()) add_header(out, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) add_header(out, name, value);
  if (response.status != 204)
    add_header(out, "Content-Length", std::to_string(response.body.size()));
  out += "\r\n";
  if (!framing.head && response.status != 204) out += response.body;
  return out;
}

std::string http_stream_head(const HttpHeaders& headers, HttpFraming framing) {
  // Without chunks the end of the connection is the end of the stream.
  framing.keep_alive = framing.keep_alive && !framing.http10;
  std::string out = start(200, framing);
  add_header(out, "Content-Type", "text/event-stream; charset=utf-8");
  add_header(out, "Cache-Control", "no-cache");
  add_header(out, "X-Accel-Buffering", "no");
  if (!framing.http10) add_header(out, "Transfer-Encoding", "chunked");
  for (const auto& [name, value] : headers) add_header(out, name, value);
  return out + "\r\n";
}

std::string http_chunk(std::string_view bytes) {
  char size[24] = {};
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  std::string out = size;
  out.append(bytes).append("\r\n");
  return out;
}

}  // namespace akv::net
