// /health* and /metrics, the same in every daemon: on the --metrics port, or beside an API.
#pragma once

#include <functional>
#include <string>

#include "common/net/http_router.h"

namespace akv::net {

struct AdminState {
  bool ready = false;
  std::string reason;  // why not ready, for people
};

// Called on io threads, per request. [thread-safe] functions.
struct AdminSources {
  std::function<AdminState()> state;
  std::function<std::string()> metrics_text;  // Prometheus text format 0.0.4; empty: no /metrics
};

// GET /health/live: 200 always. GET /health/ready and /health: 200 {"status":"ok"}, or 503 with an
// error of type unavailable_error that says why. GET /metrics.
void add_admin_routes(HttpRouter& router, AdminSources sources);
// A handler for a server with these routes only.
HttpHandler make_admin_handler(AdminSources sources);

}  // namespace akv::net
