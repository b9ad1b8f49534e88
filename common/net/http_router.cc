#include "common/net/http_router.h"

#include <utility>

namespace akv::net {
namespace {

// For texts of our own and methods and paths of clients: whatever is in them, the JSON is valid.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return out + '"';
}

const char* type_of_status(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

const char* code_of_status(int status) {
  switch (status) {
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
      return "request_timeout";
    case 413:
      return "request_too_large";
    case 431:
      return "headers_too_large";
    case 503:
      return "unavailable";
    default:
      return status < 500 ? "bad_request" : "internal_error";
  }
}

}  // namespace

std::string default_error_body(int status, std::string_view message) {
  return "{\"error\":{\"message\":" + json_string(message) + ",\"type\":\"" +
         type_of_status(status) + "\",\"param\":null,\"code\":\"" + code_of_status(status) + "\"}}";
}

HttpRouter::HttpRouter(HttpErrorBody error_body) : error_body_(std::move(error_body)) {
  if (!error_body_) error_body_ = default_error_body;
}

void HttpRouter::add(const std::string& method, const std::string& path, HttpHandler handler) {
  routes_[path][method] = std::move(handler);
}

const HttpRouter::Methods* HttpRouter::find(const std::string& path) const {
  auto route = routes_.find(path);
  for (size_t end = path.size(); route == routes_.end() && end > 0;) {
    const size_t slash = path.rfind('/', end - 1);
    if (slash == path.npos) break;
    route = routes_.find(path.substr(0, slash + 1));
    end = slash;
  }
  return route == routes_.end() ? nullptr : &route->second;
}

void HttpRouter::handle(HttpRequest&& request, std::shared_ptr<HttpExchange> exchange) const {
  const Methods* route = find(request.path);
  if (route == nullptr) {
    exchange->respond({404,
                       {},
                       "application/json",
                       error_body_(404, "no such path: " + request.path.substr(0, 200))});
    return;
  }
  const Methods& methods = *route;
  auto handler = methods.find(request.method);
  if (handler == methods.end() && request.method == "HEAD") handler = methods.find("GET");
  if (handler != methods.end()) return handler->second(std::move(request), std::move(exchange));

  std::string allow = "OPTIONS";
  for (const auto& [method, unused] : methods)
    allow += ", " + method + (method == "GET" ? ", HEAD" : "");
  if (request.method == "OPTIONS") {
    exchange->respond({204, {{"Allow", allow}}, "", ""});
    return;
  }
  exchange->respond({405,
                     {{"Allow", allow}},
                     "application/json",
                     error_body_(405, request.path + " takes " + allow)});
}

}  // namespace akv::net
