#include "common/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/net/admin.h"
#include "tests/support/raw_http.h"

namespace akv::net {
namespace {

using test::RawClient;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Hands requests to the test and keeps their exchanges.
class HttpTest : public testing::Test {
 protected:
  void start() {
    const HttpServerOptions options;
    start(options);
  }
  void start(HttpServerOptions options) {
    options.bind = {"127.0.0.1", 0};
    auto started = HttpServer::start(
        options, [this](HttpRequest&& request, std::shared_ptr<HttpExchange> exchange) {
          if (request.path == "/echo") {
            const std::string body =
                request.method + " " + request.path + "?" + request.query + " " + request.body;
            exchange->respond({200, {{"X-Test", "a\r\nInjected: b"}}, "text/plain", body});
            return;
          }
          if (request.path == "/throw") throw std::runtime_error("handler");
          exchange->on_disconnect([this] {
            ++gone_;
            changed_.notify_all();
          });
          {
            const std::lock_guard lock(mutex_);
            requests_.push_back(std::move(request));
            exchanges_.push_back(std::move(exchange));
          }
          changed_.notify_all();
        });
    ASSERT_TRUE(started.ok());
    server_ = std::move(*started);
  }
  void TearDown() override {
    exchanges_.clear();
    if (server_) server_->stop(0);
  }

  // The n-th request that waits for its answer.
  std::shared_ptr<HttpExchange> exchange(size_t n = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return exchanges_.size() > n; });
    EXPECT_GT(exchanges_.size(), n);
    return exchanges_.at(n);
  }
  bool wait_gone(int count = 1, int timeout_ms = 5000) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                             [&] { return gone_ >= count; });
  }
  bool wait_connections(size_t count) {
    for (const TimePoint until = after_ms(5000); SteadyClock::now() < until;) {
      if (server_->connections() == count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  RawClient client() { return RawClient(server_->address()); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<HttpRequest> requests_;
  std::vector<std::shared_ptr<HttpExchange>> exchanges_;
  std::atomic<int> gone_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, AnswersAndKeepsTheConnection) {
  start();
  RawClient c = client();
  for (int i = 0; i < 3; ++i) {
    c.post("/echo?a=b", "hello " + std::to_string(i));
    const std::string answer = c.response();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Connection: keep-alive\r\n"));
    EXPECT_THAT(answer, HasSubstr("X-Test: aInjected: b\r\n"));
    EXPECT_THAT(answer, testing::EndsWith("POST /echo?a=b hello " + std::to_string(i)));
  }
  EXPECT_EQ(server_->connections(), 1u);
}

TEST_F(HttpTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  RawClient c = client();
  c.send("GET /echo?1 HTTP/1.1\r\n\r\nGET /wait HTTP/1.1\r\n\r\nGET /echo?3 HTTP/1.1\r\n\r\n");
  EXPECT_THAT(c.response(), HasSubstr("/echo?1"));
  auto waiting = exchange();
  c.send("GET /echo?4 HTTP/1.1\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(gone_, 0);
  waiting->respond({200, {}, "text/plain", "second"});
  EXPECT_THAT(c.response(), HasSubstr("second"));
  EXPECT_THAT(c.response(), HasSubstr("/echo?3"));
  EXPECT_THAT(c.response(), HasSubstr("/echo?4"));
}

TEST_F(HttpTest, HeadHttp10AndCloseAsAsked) {
  start();
  RawClient head = client();
  head.send("HEAD /echo HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string both = head.until_closed();
  EXPECT_THAT(both, HasSubstr("Content-Length: 12\r\n\r\nHTTP/1.1 200"));
  EXPECT_THAT(both, testing::EndsWith("GET /echo? "));
  RawClient old = client();
  old.send("GET /echo HTTP/1.0\r\n\r\n");
  const std::string answer = old.until_closed();
  EXPECT_THAT(answer, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
}

TEST_F(HttpTest, Expect100ContinueIsAnsweredBeforeTheBody) {
  start();
  RawClient c = client();
  c.send("POST /echo HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(c.wait_for("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  c.clear();
  c.send("body");
  EXPECT_THAT(c.response(), testing::EndsWith("POST /echo? body"));
}

TEST_F(HttpTest, ChunkedBodiesAreRead) {
  start();
  RawClient c = client();
  c.send(
      "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_THAT(c.response(), testing::EndsWith("POST /echo? abcde"));
}

TEST_F(HttpTest, LimitsOfHeaderAndBody) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 1000;
  start(options);
  RawClient big = client();
  big.post("/echo", std::string(1001, 'x'));
  EXPECT_THAT(big.until_closed(), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("\"error\"")));
  RawClient chunked = client();
  chunked.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n500\r\n" +
               std::string(0x500, 'x') + "\r\n0\r\n\r\n");
  EXPECT_THAT(chunked.until_closed(), StartsWith("HTTP/1.1 413 "));
  RawClient expecting = client();
  expecting.send("POST /echo HTTP/1.1\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(expecting.response(), StartsWith("HTTP/1.1 413 "));
  RawClient header = client();
  header.get("/echo", "X: " + std::string(1000, 'y') + "\r\n");
  EXPECT_THAT(header.until_closed(), StartsWith("HTTP/1.1 431 "));
  RawClient good = client();
  good.post("/echo", std::string(1000, 'x'));
  EXPECT_THAT(good.response(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpTest, BytesThatAreNotHttpGet400) {
  start();
  for (const std::string bytes :
       {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "GET\r\n\r\n",
        "GET /echo HTTP/9.9\r\n\r\n", "GET /echo HTTP/1.1\r\nBad header\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    RawClient c = client();
    c.send(bytes);
    EXPECT_THAT(c.until_closed(), StartsWith("HTTP/1.1 400 ")) << bytes;
  }
  RawClient smuggler = client();
  smuggler.send(
      "POST /echo HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_THAT(smuggler.until_closed(), StartsWith("HTTP/1.1 400 "));
}

// A body in a coding that is taken for none would be read as the next request.
TEST_F(HttpTest, OtherTransferCodingsAreRefused) {
  start();
  for (const std::string coding : {"xchunked", "gzip", "gzip, chunked", "identity"}) {
    RawClient c = client();
    c.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: " + coding +
           "\r\n\r\nGET /echo?smuggled HTTP/1.1\r\n\r\n");
    const std::string answer = c.until_closed();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 501 ")) << coding;
    EXPECT_THAT(answer, testing::Not(HasSubstr("smuggled"))) << coding;
  }
}

TEST_F(HttpTest, SlowSendersAreCutOff) {
  HttpServerOptions options;
  options.header_timeout_ms = 200;
  options.body_timeout_ms = 200;
  options.keep_alive_timeout_ms = 300;
  start(options);
  RawClient silent = client();
  RawClient loris = client();
  RawClient body = client();
  RawClient idle = client();
  body.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  idle.get("/echo");
  EXPECT_THAT(idle.response(), StartsWith("HTTP/1.1 200 "));
  for (int i = 0; i < 8; ++i) {
    loris.send(i == 0 ? "GET /" : "x");
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  EXPECT_THAT(loris.until_closed(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(body.until_closed(), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(silent.until_closed(), "");
  EXPECT_EQ(idle.until_closed(), "");
  for (RawClient* c : {&silent, &loris, &body, &idle}) c->close();
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(HttpTest, ConnectionsOverTheLimitGet503) {
  HttpServerOptions options;
  options.max_connections = 2;
  start(options);
  RawClient a = client();
  RawClient b = client();
  a.get("/echo");
  a.response();
  b.get("/echo");
  b.response();
  RawClient c = client();
  EXPECT_THAT(c.until_closed(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1")));
  a.close();
  c.close();
  EXPECT_TRUE(wait_connections(1));
  RawClient d = client();
  d.get("/echo");
  EXPECT_THAT(d.response(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpTest, StreamsByteForByte) {
  start();
  RawClient c = client();
  c.get("/stream");
  auto stream = exchange();
  ASSERT_TRUE(stream->begin_stream({{"x-request-id", "r1"}}));
  EXPECT_TRUE(stream->begin_stream());
  EXPECT_FALSE(stream->respond({}));
  ASSERT_TRUE(stream->write_event("{\"a\":1}"));
  c.wait_for("{\"a\":1}\n\n\r\n");
  ASSERT_TRUE(stream->write_event("[DONE]"));
  stream->end_stream();
  EXPECT_FALSE(stream->write_event("late"));
  std::string answer = c.wait_for("\r\n0\r\n\r\n");
  const size_t date = answer.find("Date: ");
  answer.replace(date, answer.find("\r\n", date) - date, "Date: -");
  EXPECT_EQ(answer,
            "HTTP/1.1 200 OK\r\nDate: -\r\nConnection: keep-alive\r\n"
            "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
            "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\nx-request-id: r1\r\n\r\n"
            "f\r\ndata: {\"a\":1}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  c.clear();
  c.get("/echo");
  EXPECT_THAT(c.response(), StartsWith("HTTP/1.1 200 "));
  c.close();
  EXPECT_TRUE(wait_connections(0));
  EXPECT_EQ(gone_, 0);
}

TEST_F(HttpTest, AnHttp10StreamEndsWithItsConnection) {
  start();
  RawClient c = client();
  c.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  auto stream = exchange();
  stream->begin_stream();
  stream->write_event("x");
  stream->end_stream();
  const std::string answer = c.until_closed();
  EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  EXPECT_EQ(test::body_of(answer), "data: x\n\n");
}

TEST_F(HttpTest, IdleStreamsAreKeptAliveByComments) {
  HttpServerOptions options;
  options.ping_interval_ms = 50;
  start(options);
  RawClient c = client();
  c.get("/stream");
  auto stream = exchange();
  stream->begin_stream();
  const std::string answer = c.wait_for(": ping\n\n\r\n8\r\n: ping");
  EXPECT_EQ(test::dechunk(test::body_of(answer)).substr(0, 8), ": ping\n\n");
  stream->write_event("x");
  EXPECT_THAT(c.wait_for("data: x\n\n"), HasSubstr("data: x"));
}

TEST_F(HttpTest, AStreamBeginsByItselfWhenTheAnswerTakesLong) {
  HttpServerOptions options;
  options.ping_interval_ms = 80;
  start(options);
  RawClient late = client();
  late.get("/stream");
  exchange(0)->begin_stream_when_idle({{"x-request-id", "late"}});
  EXPECT_THAT(late.wait_for(": ping"),
              AllOf(HasSubstr("x-request-id: late\r\n"), HasSubstr("text/event-stream")));
  EXPECT_FALSE(exchange(0)->respond({400, {}, "application/json", "{}"}));
  EXPECT_TRUE(exchange(0)->begin_stream());
  RawClient soon = client();
  soon.get("/stream");
  exchange(1)->begin_stream_when_idle();
  EXPECT_TRUE(exchange(1)->respond({400, {}, "application/json", "{}"}));
  EXPECT_THAT(soon.response(), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpTest, AClientThatGoesAwayIsSeenInEveryState) {
  start();
  RawClient waiting = client();
  waiting.get("/wait");
  exchange(0);
  waiting.close();
  EXPECT_TRUE(wait_gone(1, 500));
  EXPECT_TRUE(exchange(0)->disconnected());
  EXPECT_FALSE(exchange(0)->respond({}));

  RawClient streaming = client();
  streaming.get("/stream");
  exchange(1)->begin_stream();
  exchange(1)->write_event("x");
  streaming.wait_for("data: x");
  streaming.close();
  EXPECT_TRUE(wait_gone(2, 500));
  EXPECT_FALSE(exchange(1)->write_event("y"));

  RawClient aborted = client();
  aborted.get("/stream");
  exchange(2)->begin_stream();
  aborted.wait_for("\r\n\r\n");
  aborted.reset();
  EXPECT_TRUE(wait_gone(3, 500));

  // Unread pipelined bytes do not hide the end.
  RawClient pipelining = client();
  pipelining.get("/wait");
  exchange(3);
  pipelining.send(std::string(200 << 10, 'x'));
  pipelining.close();
  EXPECT_TRUE(wait_gone(4, 3000));
  // A callback that is set too late runs, too.
  exchange(3)->on_disconnect([this] {
    ++gone_;
    changed_.notify_all();
  });
  EXPECT_TRUE(wait_gone(5));
  EXPECT_TRUE(wait_connections(0));
}

TEST_F(HttpTest, AHalfClosedClientGetsItsAnswer) {
  start();
  RawClient streaming = client();
  streaming.get("/stream");
  exchange(0)->begin_stream();
  streaming.end_sending();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  exchange(0)->write_event("still here");
  exchange(0)->end_stream();
  EXPECT_THAT(test::dechunk(test::body_of(streaming.until_closed())),
              AllOf(StartsWith(": ping\n\n"), HasSubstr("data: still here\n\n")));
  RawClient plain = client();
  plain.get("/wait");
  auto waiting = exchange(1);
  plain.end_sending();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  waiting->respond({200, {}, "text/plain", "answer"});
  EXPECT_THAT(plain.until_closed(), AllOf(StartsWith("HTTP/1.1 102 Processing\r\n\r\n"),
                                          testing::EndsWith("\r\n\r\nanswer")));
  EXPECT_EQ(gone_, 0);
}

TEST_F(HttpTest, AHalfClosedHttp10ClientIsGoneAfterItsGrace) {
  HttpServerOptions options;
  options.half_close_grace_ms = 150;
  start(options);
  RawClient c = client();
  c.send("GET /wait HTTP/1.0\r\n\r\n");
  exchange(0);
  c.end_sending();
  EXPECT_FALSE(wait_gone(1, 80));
  EXPECT_TRUE(wait_gone(1, 1000));
}

TEST_F(HttpTest, AClientThatDoesNotReadIsDropped) {
  HttpServerOptions options;
  options.max_queued_bytes = 1 << 20;
  start(options);
  RawClient c(server_->address(), 4096);
  c.get("/stream");
  auto stream = exchange();
  stream->begin_stream();
  const std::string event(10000, 'x');
  int written = 0;
  while (written < 5000 && stream->write_event(event)) ++written;
  EXPECT_LT(written, 5000);
  EXPECT_GT(written, 100);
  EXPECT_TRUE(wait_gone());
}

TEST_F(HttpTest, AStalledWriteTimesOut) {
  HttpServerOptions options;
  options.write_timeout_ms = 200;
  start(options);
  RawClient c(server_->address(), 4096);
  c.get("/wait");
  exchange()->respond({200, {}, "text/plain", std::string(64 << 20, 'x')});
  EXPECT_TRUE(wait_gone(1, 3000));
}

TEST_F(HttpTest, ADroppedExchangeIsAnError) {
  start();
  RawClient c = client();
  c.get("/wait");
  exchange();
  exchanges_.clear();
  EXPECT_THAT(c.response(), StartsWith("HTTP/1.1 500 "));
  c.get("/throw");
  EXPECT_THAT(c.response(), StartsWith("HTTP/1.1 500 "));
  c.get("/stream");
  exchange()->begin_stream();
  exchange()->write_event("part");
  c.wait_for("part");
  exchanges_.clear();
  EXPECT_THAT(c.until_closed(), Not(HasSubstr("\r\n0\r\n")));
}

TEST_F(HttpTest, StopLetsAnswersEndAndCutsTheRest) {
  start();
  RawClient idle = client();
  idle.get("/echo");
  idle.response();
  RawClient quick = client();
  quick.get("/stream");
  RawClient stuck = client();
  auto first = exchange(0);
  first->begin_stream();
  stuck.get("/wait");
  exchange(1);
  std::thread finisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    first->write_event("end");
    first->end_stream();
  });
  const TimePoint begun = SteadyClock::now();
  server_->stop(500);
  EXPECT_LT(ms_since(begun), 3000);
  finisher.join();
  EXPECT_THAT(quick.until_closed(), HasSubstr("data: end\n\n"));
  EXPECT_EQ(idle.until_closed(), "");
  EXPECT_EQ(stuck.until_closed(), "");
  EXPECT_EQ(gone_, 1);
  EXPECT_FALSE(exchange(1)->respond({}));
  // Exchanges may outlive the server.
  server_.reset();
  EXPECT_FALSE(exchange(1)->write_event("x"));
  exchange(1)->on_disconnect([] {});
}

TEST_F(HttpTest, ATakenPortIsSaid) {
  start();
  HttpServerOptions options;
  options.bind = server_->address();
  const auto second = HttpServer::start(options, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAddressInUse);
  options.bind = {"no.such.host.invalid", 1};
  EXPECT_EQ(HttpServer::start(options, {}).error().code, Code::kInvalidArgument);
}

TEST_F(HttpTest, FiveHundredIdleStreams) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  HttpServerOptions options;
  options.ping_interval_ms = 300;
  start(options);
  constexpr size_t kStreams = 500;
  std::vector<RawClient> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(client());
    clients.back().get("/stream");
    exchange(i)->begin_stream();
  }
  EXPECT_EQ(server_->connections(), kStreams);
  for (RawClient& c : clients) EXPECT_THAT(c.wait_for(": ping"), HasSubstr(": ping"));
  for (size_t i = 0; i < kStreams; ++i)
    exchanges_[i]->write_event(std::string("n").append(std::to_string(i)));
  for (RawClient& c : clients) EXPECT_THAT(c.wait_for("data: n"), HasSubstr("data: n"));
  clients.clear();
  EXPECT_TRUE(wait_gone(kStreams));
  EXPECT_TRUE(wait_connections(0));
}

TEST(HttpRouter, MethodsPathsAndAdminRoutes) {
  AdminState state{false, "no \"prefill\" peer"};
  AdminSources sources{[&] { return state; }, [] { return std::string("akv_up 1\n"); }};
  HttpServerOptions options;
  options.bind = {"127.0.0.1", 0};
  const auto server = std::move(HttpServer::start(options, make_admin_handler(sources)).value());
  RawClient c(server->address());
  const auto ask = [&](const std::string& line) {
    c.send(line + " HTTP/1.1\r\n\r\n");
    return c.response();
  };
  EXPECT_THAT(ask("GET /health/live"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(ask("GET /health/ready"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1\r\n"),
                    HasSubstr(R"("message":"no \"prefill\" peer","type":"unavailable_error")")));
  state.ready = true;
  EXPECT_THAT(ask("GET /health"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\"ok\"")));
  EXPECT_THAT(ask("GET /metrics?x=1"),
              AllOf(HasSubstr("text/plain; version=0.0.4; charset=utf-8\r\n"),
                    testing::EndsWith("akv_up 1\n")));
  c.send("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(c.wait_for("\r\n\r\n"), testing::EndsWith("Content-Length: 9\r\n\r\n"));
  RawClient d(server->address());
  d.send("DELETE /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(d.response(),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: OPTIONS, GET, HEAD\r\n")));
  d.send("OPTIONS /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(d.response(), AllOf(StartsWith("HTTP/1.1 204 "), HasSubstr("Allow: ")));
  d.send("GET /nothing\" HTTP/1.1\r\n\r\n");
  EXPECT_THAT(d.response(), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("not_found_error")));
}

}  // namespace
}  // namespace akv::net
