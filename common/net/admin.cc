#include "common/net/admin.h"

#include <memory>
#include <utility>

namespace akv::net {
namespace {

constexpr const char* kOk = R"({"status":"ok"})";

HttpResponse readiness(const AdminState& state) {
  if (state.ready) return {200, {}, "application/json", kOk};
  const std::string reason = state.reason.empty() ? "not ready" : state.reason;
  return {503, {{"Retry-After", "1"}}, "application/json", default_error_body(503, reason)};
}

}  // namespace

void add_admin_routes(HttpRouter& router, AdminSources sources) {
  const auto shared = std::make_shared<const AdminSources>(std::move(sources));
  router.add("GET", "/health/live", [](HttpRequest&&, std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({200, {}, "application/json", kOk});
  });
  for (const char* path : {"/health/ready", "/health"})
    router.add("GET", path, [shared](HttpRequest&&, std::shared_ptr<HttpExchange> exchange) {
      exchange->respond(readiness(shared->state()));
    });
  if (!shared->metrics_text) return;
  router.add("GET", "/metrics", [shared](HttpRequest&&, std::shared_ptr<HttpExchange> exchange) {
    exchange->respond(
        {200, {}, "text/plain; version=0.0.4; charset=utf-8", shared->metrics_text()});
  });
}

HttpHandler make_admin_handler(AdminSources sources) {
  auto router = std::make_shared<HttpRouter>();
  add_admin_routes(*router, std::move(sources));
  return [router](HttpRequest&& request, std::shared_ptr<HttpExchange> exchange) {
    router->handle(std::move(request), std::move(exchange));
  };
}

}  // namespace akv::net
