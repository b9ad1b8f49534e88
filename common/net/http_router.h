// Routing by path with 404, 405 + Allow, HEAD by GET, and OPTIONS.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/net/http_server.h"

namespace akv::net {

// Filled before the server starts, then only read: safe from all io threads.
class HttpRouter {
 public:
  explicit HttpRouter(HttpErrorBody error_body = {});
  // One handler per (method, path); GET also serves HEAD (the server leaves the body out). A path
  // that ends in '/' takes all paths below it that have no route of their own.
  void add(const std::string& method, const std::string& path, HttpHandler handler);
  void handle(HttpRequest&& request, std::shared_ptr<HttpExchange> exchange) const;

 private:
  using Methods = std::map<std::string, HttpHandler>;
  const Methods* find(const std::string& path) const;

  HttpErrorBody error_body_;
  std::map<std::string, Methods> routes_;  // by path
};

// {"error":{"message","type","param":null,"code"}} as clients of the OpenAI API read it.
std::string default_error_body(int status, std::string_view message);

}  // namespace akv::net
