#include "common/net/control_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "common/base/clock.h"
#include "common/net/control_wire.h"

namespace akv::net {
namespace {

using testing::HasSubstr;

// Tests of losses beat quickly; the others slowly, so that a busy machine loses nobody.
constexpr int kBeatMs = 150;
constexpr int kSlowBeatMs = 3000;

struct StationSetup {
  uint16_t port = 0;
  std::optional<CurveOptions> curve;
  std::string load = "{}";
  bool echo = false;
  int beat_ms = kSlowBeatMs;
};
StationSetup quick(uint16_t port = 0) {
  StationSetup setup;
  setup.port = port;
  setup.beat_ms = kBeatMs;
  return setup;
}
StationSetup with_curve(CurveOptions curve) {
  StationSetup setup;
  setup.curve = std::move(curve);
  return setup;
}
StationSetup with_load(std::string load) {
  StationSetup setup;
  setup.load = std::move(load);
  return setup;
}

// A loop that writes down what it sees and can be waited for.
class Station {
 public:
  explicit Station(bool bind) : Station(bind, StationSetup()) {}
  Station(bool bind, StationSetup setup) : load(std::move(setup.load)), echo(setup.echo) {
    ControlLoopOptions options;
    if (bind) options.bind = HostPort{"127.0.0.1", setup.port};
    options.curve = std::move(setup.curve);
    options.heartbeat_ms = setup.beat_ms;
    options.reconnect_min_ms = 20;
    options.reconnect_max_ms = 200;
    Result<std::unique_ptr<ControlLoop>> created = ControlLoop::create(options);
    EXPECT_TRUE(created.ok());
    if (!created.ok()) return;
    loop = std::move(*created);
    ControlHandlers handlers;
    handlers.on_peer = [this](const PeerEvent& event) { note(events, event); };
    handlers.on_message = [this](PeerId peer, ControlMessage&& message) {
      if (echo) (void)loop->send(peer, message);
      note(messages, std::pair(peer, std::move(message)));
    };
    handlers.on_heartbeat = [this](PeerId, std::string_view body) {
      note(beats, std::string(body));
    };
    handlers.heartbeat_body = [this] { return load; };
    loop->start(std::move(handlers));
  }
  ~Station() {
    if (loop) loop->stop();
  }

  template <class P>
  bool wait_for(P predicate, int timeout_ms = 5000) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), predicate);
  }
  bool wait_up(size_t n = 1) {
    return wait_for([&] { return count(true) >= n; });
  }
  bool wait_down(size_t n = 1, int timeout_ms = 5000) {
    return wait_for([&] { return count(false) >= n; }, timeout_ms);
  }
  size_t count(bool up) const {
    return std::count_if(events.begin(), events.end(),
                         [&](const PeerEvent& e) { return e.up == up; });
  }
  PeerEvent last_event() {
    const std::lock_guard lock(mutex);
    return events.empty() ? PeerEvent{} : events.back();
  }
  PeerId last_peer() { return last_event().peer; }
  // What was seen so far; the lists themselves only in wait_for().
  std::vector<PeerEvent> seen_events() {
    const std::lock_guard lock(mutex);
    return events;
  }
  std::vector<std::string> seen_beats() {
    const std::lock_guard lock(mutex);
    return beats;
  }
  std::vector<std::pair<PeerId, ControlMessage>> seen_messages() {
    const std::lock_guard lock(mutex);
    return messages;
  }
  size_t seen_up() {
    const std::lock_guard lock(mutex);
    return count(true);
  }
  Status send(PeerId peer, ControlMessage message) {
    std::promise<Status> sent;
    loop->post([&] { sent.set_value(loop->send(peer, message)); });
    return sent.get_future().get();
  }
  template <class F>
  auto on_loop(F fn) {
    std::promise<decltype(fn())> done;
    loop->post([&] { done.set_value(fn()); });
    return done.get_future().get();
  }

  std::unique_ptr<ControlLoop> loop;
  const std::string load;
  const bool echo;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<PeerEvent> events;
  std::vector<std::pair<PeerId, ControlMessage>> messages;
  std::vector<std::string> beats;

 private:
  template <class List, class Item>
  void note(List& list, Item item) {
    {
      const std::lock_guard lock(mutex);
      list.push_back(std::move(item));
    }
    changed.notify_all();
  }
};

TEST(ControlLoop, PeersMeetTalkAndCarryLoad) {
  Station server(true, with_load("server load"));
  Station client(false, with_load("client load"));
  const PeerId peer = client.loop->dial(*server.loop->address());
  ASSERT_TRUE(client.wait_up());
  ASSERT_TRUE(server.wait_up());
  EXPECT_TRUE(client.seen_events()[0].dialed);
  EXPECT_EQ(client.seen_events()[0].peer, peer);
  EXPECT_EQ(client.seen_events()[0].address, server.loop->address()->str());
  EXPECT_FALSE(server.seen_events()[0].dialed);
  ASSERT_TRUE(client.wait_for([&] { return !client.beats.empty(); }));
  ASSERT_TRUE(server.wait_for([&] { return !server.beats.empty(); }));
  EXPECT_EQ(client.seen_beats()[0], "server load");
  EXPECT_EQ(server.seen_beats()[0], "client load");

  const ControlMessage hello{"HELLO", R"({"role":"frontdoor"})", std::string("\0\1\2", 3)};
  ASSERT_TRUE(client.send(peer, hello).ok());
  ASSERT_TRUE(server.wait_for([&] { return server.messages.size() == 1; }));
  EXPECT_EQ(server.seen_messages()[0].second.type, hello.type);
  EXPECT_EQ(server.seen_messages()[0].second.body, hello.body);
  EXPECT_EQ(server.seen_messages()[0].second.blob, hello.blob);
  ASSERT_TRUE(server.send(server.seen_messages()[0].first, {"WELCOME", "{}", ""}).ok());
  ASSERT_TRUE(client.wait_for([&] { return client.messages.size() == 1; }));
  EXPECT_EQ(client.seen_messages()[0].first, peer);
  EXPECT_EQ(client.seen_messages()[0].second.type, "WELCOME");
  EXPECT_GE(client.on_loop([&] { return client.loop->silence_ms(peer); }), 0);
}

TEST(ControlLoop, MessagesKeepTheirOrderAndAreNotLost) {
  StationSetup echo;
  echo.echo = true;
  Station server(true, echo);
  Station client(false);
  const PeerId peer = client.loop->dial(*server.loop->address());
  ASSERT_TRUE(client.wait_up());
  constexpr size_t kCount = 500;
  client.loop->post([&] {
    for (size_t i = 0; i < kCount; ++i)
      EXPECT_TRUE(client.loop->send(peer, {"N", std::to_string(i), ""}).ok());
  });
  ASSERT_TRUE(client.wait_for([&] { return client.messages.size() == kCount; }));
  const auto messages = client.seen_messages();
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(messages[i].second.body, std::to_string(i));
}

TEST(ControlLoop, BoundsOfMessages) {
  Station server(true);
  Station client(false);
  const PeerId peer = client.loop->dial(*server.loop->address());
  EXPECT_EQ(client.send(peer + 100, {"A", "", ""}).error().code, Code::kUnavailable);
  ASSERT_TRUE(client.wait_up());
  const std::string big((1 << 20) + 1, 'x');
  EXPECT_EQ(client.send(peer, {"A", big, ""}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(client.send(peer, {"lower", "", ""}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(client.send(peer, {std::string(33, 'A'), "", ""}).error().code, Code::kInvalidArgument);
  const std::string ids(4 << 20, '\7');
  ASSERT_TRUE(client.send(peer, {"PREFILL", "{}", ids}).ok());
  ASSERT_TRUE(server.wait_for([&] { return server.messages.size() == 1; }));
  EXPECT_EQ(server.seen_messages()[0].second.blob, ids);
}

TEST(ControlLoop, AFullSendQueueIsSaid) {
  ControlLoopOptions options;
  options.bind = HostPort{"127.0.0.1", 0};
  options.heartbeat_ms = kBeatMs;
  options.receive_queue_messages = 2;
  auto server = std::move(ControlLoop::create(options).value());
  // The server's thread is kept busy: nothing is read.
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  ControlHandlers busy;
  busy.on_message = [&](PeerId, ControlMessage&&) { released.wait(); };
  server->start(std::move(busy));
  ControlLoopOptions sender_options;
  sender_options.send_queue_messages = 4;
  sender_options.heartbeat_ms = 10000;
  auto sender = std::move(ControlLoop::create(sender_options).value());
  std::promise<void> up;
  ControlHandlers handlers;
  handlers.on_peer = [&](const PeerEvent& event) {
    if (event.up) up.set_value();
  };
  sender->start(std::move(handlers));
  const PeerId peer = sender->dial(*server->address());
  up.get_future().wait();
  std::promise<Code> code;
  sender->post([&] {
    const std::string blob(1 << 20, 'x');
    for (int i = 0; i < 1000; ++i) {
      const Status status = sender->send(peer, {"BULK", "", blob});
      if (!status.ok()) return code.set_value(status.error().code);
    }
    code.set_value(Code::kInternal);
  });
  EXPECT_EQ(code.get_future().get(), Code::kResourceExhausted);
  release.set_value();
  sender->stop();
  server->stop();
}

// A peer that does not take what it cannot miss goes down on both sides, and then comes back.
TEST(ControlLoop, APeerThatMissesAMessageIsLost) {
  ControlLoopOptions options;
  options.bind = HostPort{"127.0.0.1", 0};
  options.heartbeat_ms = kBeatMs;
  options.receive_queue_messages = 2;
  auto server = std::move(ControlLoop::create(options).value());
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<PeerId> first_peer = 0;
  std::promise<PeerId> first_down;
  ControlHandlers busy;
  busy.on_message = [&](PeerId peer, ControlMessage&&) {
    first_peer = peer;
    released.wait();
  };
  busy.on_peer = [&](const PeerEvent& event) {
    if (!event.up && event.peer == first_peer) first_down.set_value(event.peer);
  };
  server->start(std::move(busy));
  ControlLoopOptions sender_options;
  sender_options.send_queue_messages = 4;
  sender_options.heartbeat_ms = 10000;  // not by silence
  sender_options.reconnect_min_ms = 20;
  auto sender = std::move(ControlLoop::create(sender_options).value());
  std::promise<void> up;
  std::promise<std::string> down;
  std::promise<void> again;
  int ups = 0;
  ControlHandlers handlers;
  handlers.on_peer = [&](const PeerEvent& event) {
    if (event.up && ++ups <= 2) (ups == 1 ? up : again).set_value();
    if (!event.up) down.set_value(event.reason);
  };
  sender->start(std::move(handlers));
  const PeerId peer = sender->dial(*server->address());
  up.get_future().wait();
  sender->post([&] {
    const std::string blob(1 << 20, 'x');
    while (sender->send_or_lose_peer(peer, {"BULK", "", blob}).ok()) {
    }
  });
  EXPECT_EQ(down.get_future().get(), "connection lost");
  release.set_value();
  again.get_future().wait();
  sender->stop();
  server->stop();
}

TEST(ControlLoop, ForeignBytesDoNotHarm) {
  EXPECT_FALSE(decode_frames({}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01M"}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01M", ""}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01Mlower", ""}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x02MHELLO", ""}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01XHELLO", ""}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01P\1\1\1", ""}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01Q\1\1\1", ""}, {}));
  EXPECT_FALSE(decode_frames({"AKV\x01MHELLO", "", "", ""}, {}));
  ControlLoopOptions small;
  small.max_body_bytes = 3;
  small.max_blob_bytes = 2;
  EXPECT_FALSE(decode_frames({"AKV\x01MHELLO", "four"}, small));
  EXPECT_FALSE(decode_frames({"AKV\x01MHELLO", "", "abc"}, small));
  EXPECT_TRUE(decode_frames({"AKV\x01MHELLO", "abc", "ab"}, small));
  const auto ping = decode_frames({encode_header(Ping{250}), "load"}, {});
  ASSERT_TRUE(ping);
  EXPECT_EQ(ping->ping.interval_ms, 250u);
  EXPECT_EQ(ping->message.body, "load");
  const auto pong = decode_frames({encode_header(Pong{7, 1ull << 63}), ""}, {});
  ASSERT_TRUE(pong);
  EXPECT_EQ(pong->pong.session, 1ull << 63);
}

TEST(ControlLoop, TimersRunInOrderAndCanBeCancelled) {
  Station station(false);
  std::mutex mutex;
  std::string order;
  std::promise<void> done;
  station.loop->post([&] {
    ControlLoop& loop = *station.loop;
    EXPECT_TRUE(loop.on_control_thread());
    loop.call_after(60, [&] { order += 'c'; });
    loop.call_after(20, [&] { order += 'a'; });
    const TimerId never = loop.call_after(30, [&] { order += 'X'; });
    loop.call_after(25, [&, never] { loop.cancel_timer(never); });
    auto ticks = std::make_shared<int>(0);
    auto id = std::make_shared<TimerId>(0);
    *id = loop.call_every(100, [&, ticks, id] {
      order += 't';
      if (++*ticks < 3) return;
      loop.cancel_timer(*id);
      loop.call_after(150, [&] { done.set_value(); });
    });
  });
  done.get_future().wait();
  EXPECT_EQ(order, "acttt");
  EXPECT_FALSE(station.loop->on_control_thread());
}

TEST(ControlLoop, PostsAreBoundedAndEndWithStop) {
  ControlLoopOptions options;
  options.max_posted = 2;
  auto loop = std::move(ControlLoop::create(options).value());
  int ran = 0;
  EXPECT_TRUE(loop->post([&] { ++ran; }));
  EXPECT_TRUE(loop->post([&] { ++ran; }));
  EXPECT_FALSE(loop->post([&] { ++ran; }));
  loop->start({});
  std::promise<void> done;
  while (!loop->post([&] { done.set_value(); })) std::this_thread::yield();
  done.get_future().wait();
  loop->stop();
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(loop->post([] {}));
}

TEST(ControlLoop, ATakenPortIsSaid) {
  Station first(true);
  ControlLoopOptions options;
  options.bind = first.loop->address();
  const auto second = ControlLoop::create(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAddressInUse);
  EXPECT_THAT(second.error().message, HasSubstr(first.loop->address()->str()));
  options.bind = HostPort{"not an address", 1};
  EXPECT_EQ(ControlLoop::create(options).error().code, Code::kInvalidArgument);
}

TEST(ControlLoop, ADialledPeerMayComeLaterAndComeBackOnItsPort) {
  uint16_t port = 0;
  { port = Station(true).loop->address()->port; }
  Station client(false, quick());
  const PeerId peer = client.loop->dial({"127.0.0.1", port});
  EXPECT_FALSE(client.wait_for([&] { return !client.events.empty(); }, 200));
  for (size_t round = 1; round <= 3; ++round) {
    Station server(true, quick(port));
    ASSERT_TRUE(client.wait_up(round));
    ASSERT_TRUE(server.wait_up());
    EXPECT_EQ(client.last_peer(), peer);
    server.loop->stop();
    server.loop.reset();
    // A closed connection is seen before heartbeats would be missed.
    ASSERT_TRUE(client.wait_down(round));
    EXPECT_EQ(client.last_event().reason, "connection lost");
  }
  EXPECT_EQ(client.send(peer, {"A", "", ""}).error().code, Code::kUnavailable);
}

TEST(ControlLoop, AStoppedLoopOfADiallerIsMissed) {
  Station server(true, quick());
  auto client = std::make_unique<Station>(false, quick());
  client->loop->dial(*server.loop->address());
  ASSERT_TRUE(server.wait_up());
  const PeerId peer = server.last_peer();
  client.reset();
  const TimePoint gone = SteadyClock::now();
  ASSERT_TRUE(server.wait_down());
  EXPECT_LT(ms_since(gone), 10 * kBeatMs);
  EXPECT_EQ(server.last_event().peer, peer);
  EXPECT_EQ(server.last_event().reason, "heartbeat lost");
  EXPECT_EQ(server.send(peer, {"A", "", ""}).error().code, Code::kUnavailable);
}

TEST(ControlLoop, HangUpIsQuiet) {
  Station server(true, quick());
  Station client(false, quick());
  const PeerId peer = client.loop->dial(*server.loop->address());
  ASSERT_TRUE(client.wait_up());
  client.loop->hang_up(peer);
  ASSERT_TRUE(server.wait_down());
  EXPECT_FALSE(client.on_loop([&] { return client.loop->is_up(peer); }));
  EXPECT_EQ(client.seen_events().size(), 1u);
}

// A server in a process of its own, to be stopped and killed.
class Child {
 public:
  explicit Child(uint16_t port) {
    pid_ = fork();
    if (pid_ != 0) return;
    // Only this thread exists here; the loop starts its own.
    Station server(true, quick(port));
    pause();
    _exit(0);
  }
  ~Child() {
    signal(SIGCONT);
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void signal(int number) const { kill(pid_, number); }

 private:
  pid_t pid_ = -1;
};

TEST(ControlLoop, AStoppedProcessIsFoundByHeartbeatsAndComesBack) {
  uint16_t port = 0;
  { port = Station(true).loop->address()->port; }
  const Child child(port);
  Station client(false, quick());
  const PeerId peer = client.loop->dial({"127.0.0.1", port});
  ASSERT_TRUE(client.wait_up());
  child.signal(SIGSTOP);
  const TimePoint stopped = SteadyClock::now();
  ASSERT_TRUE(client.wait_down());
  EXPECT_EQ(client.last_event().reason, "heartbeat lost");
  EXPECT_GT(ms_since(stopped), 2 * kBeatMs);
  child.signal(SIGCONT);
  ASSERT_TRUE(client.wait_up(2));
  EXPECT_EQ(client.last_peer(), peer);
  child.signal(SIGKILL);
  ASSERT_TRUE(client.wait_down(2));
  EXPECT_EQ(client.last_event().reason, "connection lost");
}

// ---- CURVE ------------------------------------------------------------------------------------

CurveOptions pool_of(const CurveKeys& keys, std::vector<CurvePeer> peers = {}) {
  return {keys, std::move(peers)};
}

TEST(ControlLoopCurve, OneKeyPairForAPoolIsAccepted) {
  const CurveKeys keys = make_curve_keys().value();
  Station server(true, with_curve(pool_of(keys)));
  Station client(false, with_curve(pool_of(keys)));
  const PeerId peer = client.loop->dial(*server.loop->address());
  ASSERT_TRUE(client.wait_up());
  ASSERT_TRUE(client.send(peer, {"HELLO", "{}", ""}).ok());
  EXPECT_TRUE(server.wait_for([&] { return server.messages.size() == 1; }));
}

TEST(ControlLoopCurve, UnknownKeysAreRefusedUntilTheyAreListed) {
  const CurveKeys server_keys = make_curve_keys().value();
  const CurveKeys client_keys = make_curve_keys().value();
  Station server(true, with_curve(pool_of(server_keys)));
  const std::string address = server.loop->address()->str();
  Station client(false, with_curve(pool_of(client_keys, {{server_keys.public_key, address}})));
  client.loop->dial(*server.loop->address());
  ASSERT_TRUE(client.wait_for([&] { return !client.events.empty(); }));
  EXPECT_FALSE(client.seen_events()[0].up);
  EXPECT_THAT(client.seen_events()[0].reason, HasSubstr("handshake refused"));
  EXPECT_EQ(server.seen_up(), 0u);
  server.loop->set_curve_peers({{client_keys.public_key, ""}});
  EXPECT_TRUE(client.wait_up());
}

TEST(ControlLoopCurve, AServerWithAnotherKeyIsNotTrusted) {
  const CurveKeys client_keys = make_curve_keys().value();
  const CurveKeys wrong = make_curve_keys().value();
  Station server(true,
                 with_curve(pool_of(make_curve_keys().value(), {{client_keys.public_key, ""}})));
  Station client(
      false, with_curve(pool_of(client_keys, {{wrong.public_key, server.loop->address()->str()}})));
  client.loop->dial(*server.loop->address());
  EXPECT_FALSE(client.wait_for([&] { return client.count(true) > 0; }, 800));
}

TEST(ControlLoopCurve, AClientWithoutKeysIsRefused) {
  const CurveKeys keys = make_curve_keys().value();
  Station server(true, with_curve(pool_of(keys)));
  Station client(false);
  client.loop->dial(*server.loop->address());
  EXPECT_FALSE(client.wait_for([&] { return client.count(true) > 0; }, 800));
  EXPECT_EQ(server.seen_up(), 0u);
}

TEST(CurveFiles, AreReadAndTheirFaultsNamed) {
  const auto dir =
      std::filesystem::temp_directory_path() / ("akv-curve-" + std::to_string(getpid()));
  std::filesystem::create_directory(dir);
  const std::string path = dir / "keys";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  const CurveKeys keys = make_curve_keys().value();
  const CurveKeys other = make_curve_keys().value();
  write("# of the pool\npublic " + keys.public_key + "\nsecret " + keys.secret_key + "\n");
  EXPECT_EQ(read_curve_keys(path).value().public_key, keys.public_key);
  write("public " + other.public_key + "\nsecret " + keys.secret_key + "\n");
  EXPECT_THAT(read_curve_keys(path).error().message, HasSubstr("not a pair"));
  write("secret short\n");
  EXPECT_EQ(read_curve_keys(path).error().code, Code::kInvalidArgument);
  EXPECT_EQ(read_curve_keys(dir / "none").error().code, Code::kIo);

  write("# peers\n\n" + keys.public_key + " prefill-0:5555\n" + other.public_key + "\n");
  const auto peers = read_curve_peers(path).value();
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_EQ(peers[0].address, "prefill-0:5555");
  EXPECT_EQ(peers[1].public_key, other.public_key);
  write(keys.public_key + " not-an-address\n");
  EXPECT_FALSE(read_curve_peers(path).ok());
  write("garbage\n");
  EXPECT_FALSE(read_curve_peers(path).ok());
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace akv::net
