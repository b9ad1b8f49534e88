#include "common/net/http_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/net/http_connection.h"
#include "common/net/http_router.h"
#include "common/net/thread_signals.h"

namespace akv::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

HttpCore::HttpCore(HttpServerOptions options_in, HttpHandler handler_in)
    : options(std::move(options_in)), handler(std::move(handler_in)), io(options.threads) {}

void HttpCore::add(uint64_t id, std::weak_ptr<HttpConnection> connection) {
  const std::lock_guard lock(mutex_);
  connections_.emplace(id, std::move(connection));
}

void HttpCore::remove(uint64_t id) {
  const std::lock_guard lock(mutex_);
  connections_.erase(id);
  if (connections_.empty()) empty_.notify_all();
}

size_t HttpCore::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

bool HttpCore::wait_empty(int timeout_ms) {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                         [&] { return connections_.empty(); });
}

std::vector<std::shared_ptr<HttpConnection>> HttpCore::all() const {
  std::vector<std::shared_ptr<HttpConnection>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, weak] : connections_)
    if (auto connection = weak.lock()) found.push_back(std::move(connection));
  return found;
}

namespace {

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
// Connections over the limit that are being told so at a time; more are closed at once.
constexpr size_t kMaxRefusals = 64;

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, HttpHandler handler)
      : core_(std::make_shared<HttpCore>(std::move(options), std::move(handler))),
        acceptor_(core_->io),
        work_(asio::make_work_guard(core_->io)) {}
  ~Server() override { stop(0); }

  Status listen() {
    const HostPort& bind = core_->options.bind;
    const std::string what = "cannot bind the HTTP address " + bind.str() + ": ";
    error_code ec;
    tcp::resolver resolver(core_->io);
    const std::string host = bind.host == "*" ? "0.0.0.0" : bind.host;
    const auto found =
        resolver.resolve(host, std::to_string(bind.port), tcp::resolver::passive, ec);
    if (ec) return make_error(Code::kInvalidArgument, what + ec.message());
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(1024, ec);
    if (ec == asio::error::address_in_use)
      return make_error(Code::kAddressInUse, what + ec.message());
    if (ec) return make_error(Code::kInvalidArgument, what + ec.message());
    address_ = HostPort{bind.host, acceptor_.local_endpoint().port()};
    return {};
  }

  void run() {
    asio::co_spawn(core_->io, accept(), asio::detached);
    const BlockSignals block;
    for (int i = 0; i < core_->options.threads; ++i) {
      threads_.emplace_back([core = core_] { core->io.run(); });
      pthread_setname_np(threads_.back().native_handle(),
                         core_->options.thread_name.substr(0, 15).c_str());
    }
  }

  HostPort address() const override { return address_; }
  size_t connections() const override { return core_->connections(); }

  void stop(int grace_ms) override {
    if (core_->stopping.exchange(true)) return;
    asio::post(core_->io, [this] {
      error_code ec;
      acceptor_.close(ec);
    });
    if (!threads_.empty()) {
      for (const auto& connection : core_->all()) connection->begin_stop();
      core_->wait_empty(grace_ms);
      // Accepted or still reading when the rest was told: told again until none is left.
      do {
        for (const auto& connection : core_->all()) connection->cut();
      } while (!core_->wait_empty(100));
    }
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  asio::awaitable<void> accept() {
    asio::steady_timer pause(core_->io);
    while (!core_->stopping) {
      auto [ec, socket] = co_await acceptor_.async_accept(asio::make_strand(core_->io), kNoThrow);
      if (core_->stopping) co_return;
      if (ec) {
        // Out of descriptors, most likely: those in use come back.
        pause.expires_after(std::chrono::milliseconds(50));
        co_await pause.async_wait(kNoThrow);
        continue;
      }
      serve(std::move(socket));
    }
  }

  void serve(tcp::socket socket) {
    const size_t open = core_->connections();
    if (open >= core_->options.max_connections + kMaxRefusals) return;
    const bool refuse = open >= core_->options.max_connections;
    const auto executor = socket.get_executor();
    const uint64_t id = ++last_id_;
    auto connection = std::make_shared<HttpConnection>(core_, std::move(socket), id);
    core_->add(id, connection);
    const auto keep_alive = [connection](std::exception_ptr) {};
    if (refuse)
      asio::co_spawn(executor, connection->refuse(), keep_alive);
    else
      asio::co_spawn(executor, connection->run(), keep_alive);
  }

  const std::shared_ptr<HttpCore> core_;
  tcp::acceptor acceptor_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  HostPort address_;
  std::vector<std::thread> threads_;
  uint64_t last_id_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options,
                                                      HttpHandler handler) {
  if (!options.error_body) options.error_body = default_error_body;
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  AKV_RETURN_IF_ERROR(server->listen());
  server->run();
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace akv::net
