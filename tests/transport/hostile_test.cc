// Peers that do not keep to the protocol, and addresses that cannot be used (UCX only).
#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include "tests/transport/rig.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/wire.h"
#include "transport/ucx/worker.h"

namespace akv::transport {
namespace {

// A UCX client that sends whatever bytes it is told to.
class RawPeer {
 public:
  explicit RawPeer(const HostPort& to) {
    worker_ = std::move(*UcxWorker::create(config_for(Kind::kUcxTcp), "lo"));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = wire::kControlAm;
    handler.arg = this;
    handler.cb = [](void* arg, const void*, size_t, void* data, size_t length,
                    const ucp_am_recv_param_t*) {
      auto message = wire::decode({static_cast<const std::byte*>(data), length});
      if (message.ok()) static_cast<RawPeer*>(arg)->got_.push_back(*message);
      return UCS_OK;
    };
    EXPECT_EQ(ucp_worker_set_am_recv_handler(worker_->handle(), &handler), UCS_OK);
    connection_ = *Connection::dial(*worker_, *resolve(to), nullptr, [] {});
  }
  ~RawPeer() {
    connection_->abort();
    for (int i = 0; i < 20000 && !connection_->gone(); ++i) turn();
  }

  void send(unsigned id, const std::string& header, const std::string& data, unsigned flags = 0) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_REPLY | flags;
    void* request =
        ucp_am_send_nbx(connection_->endpoint(), id, header.empty() ? nullptr : header.data(),
                        header.size(), data.data(), data.size(), &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    const TimePoint until = after_ms(30000);
    while (ucp_request_check_status(request) == UCS_INPROGRESS && SteadyClock::now() < until)
      turn();
    EXPECT_NE(ucp_request_check_status(request), UCS_INPROGRESS);
    ucp_request_free(request);
  }
  void say(const wire::Message& message) { send(wire::kControlAm, {}, wire::encode(message)); }
  void hello() {
    wire::Message m;
    m.type = wire::Type::kHello;
    m.text = ucx_version();
    say(m);
    ASSERT_TRUE(hear(wire::Type::kWelcome).has_value());
  }
  // The next message of a type; nothing when the connection breaks or five seconds pass first.
  std::optional<wire::Message> hear(wire::Type type) {
    const TimePoint until = after_ms(30000);
    while (SteadyClock::now() < until) {
      for (; next_ < got_.size(); ++next_) {
        if (got_[next_].type == type) return got_[next_++];
      }
      if (connection_->broken()) return std::nullopt;
      turn();
    }
    return std::nullopt;
  }
  bool cut_off() {
    const TimePoint until = after_ms(30000);
    while (!connection_->broken() && SteadyClock::now() < until) turn();
    return connection_->broken().has_value();
  }

 private:
  void turn() {
    if (!worker_->progress()) usleep(100);
  }
  std::unique_ptr<UcxWorker> worker_;
  ConnectionPtr connection_;
  std::vector<wire::Message> got_;
  size_t next_ = 0;
};

class HostileTest : public testing::Test {
 protected:
  wire::RecordHeader header(uint32_t record, uint64_t bytes) const {
    const LandingAddress& a = expected.address;
    return {{a.transfer, a.token, a.attempt}, record, bytes};
  }
  // The landing is whole and a good sender still gets through.
  void expect_unharmed() {
    EXPECT_FALSE(expected.events.ended());
    EXPECT_TRUE(expected.memory.all(0xaa));
    State state(sizes);
    SendRecorder events;
    auto channel = rig.sender->open(expected.address, after_ms(60000), events.fn());
    ASSERT_TRUE(channel.ok());
    post_all(*rig.sender, *channel, state);
    EXPECT_TRUE(events.complete()) << events.message();
    EXPECT_TRUE(expected.events.complete()) << expected.events.message();
    EXPECT_TRUE(state.bytes == expected.memory.bytes);
  }
  Rig rig{Kind::kUcxTcp};
  std::vector<size_t> sizes{1000, 100000};
  Expected expected{*rig.receiver, sizes};
};

TEST_F(HostileTest, OtherProtocolVersionIsRefusedWithAReason) {
  RawPeer peer(rig.receiver->address());
  wire::Message m;
  m.type = wire::Type::kHello;
  m.text = ucx_version();
  m.protocol = 9;
  peer.say(m);
  auto refused = peer.hear(wire::Type::kRefused);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, static_cast<uint16_t>(Code::kMismatch));
  EXPECT_NE(refused->text.find("protocol 9"), std::string::npos) << refused->text;
  EXPECT_TRUE(peer.cut_off());
  expect_unharmed();
}

TEST_F(HostileTest, OtherUcxVersionIsRefusedWithAReason) {
  RawPeer peer(rig.receiver->address());
  wire::Message m;
  m.type = wire::Type::kHello;
  m.text = "1.13.1";
  peer.say(m);
  auto refused = peer.hear(wire::Type::kRefused);
  ASSERT_TRUE(refused.has_value());
  EXPECT_NE(refused->text.find("1.13.1"), std::string::npos) << refused->text;
  expect_unharmed();
}

TEST_F(HostileTest, RecordsBeforeTheHelloAreDropped) {
  RawPeer peer(rig.receiver->address());
  peer.send(wire::kRecordAm, wire::encode(header(0, 1000)), std::string(1000, 'x'));
  peer.send(wire::kRecordAm, wire::encode(header(1, 100000)), std::string(100000, 'x'),
            UCP_AM_SEND_FLAG_RNDV);
  expect_unharmed();
}

TEST_F(HostileTest, GarbageCutsItsOwnConnectionOnly) {
  for (const std::string& garbage :
       {std::string("x"), std::string(300, '\xff'), std::string("AK\x01\x04"),
        std::string("AK\x01\x63"), std::string(100000, 'y')}) {
    RawPeer peer(rig.receiver->address());
    peer.hello();
    peer.send(wire::kControlAm, {}, garbage, UCP_AM_SEND_FLAG_EAGER);
    EXPECT_TRUE(peer.cut_off()) << garbage.size();
  }
  for (const std::string& garbage : {std::string(), std::string("x"), std::string(56, '\0')}) {
    RawPeer peer(rig.receiver->address());
    peer.hello();
    peer.send(wire::kRecordAm, garbage, std::string(1000, 'x'));
    EXPECT_TRUE(peer.cut_off()) << garbage.size();
  }
  expect_unharmed();
}

TEST_F(HostileTest, UnknownMessageIdsAndRendezvousControlAreIgnored) {
  RawPeer peer(rig.receiver->address());
  peer.hello();
  peer.send(77, "header", "data");
  peer.send(wire::kControlAm, {}, std::string(1 << 20, 'x'), UCP_AM_SEND_FLAG_RNDV);
  wire::Message m;
  m.type = wire::Type::kOpen;
  m.key.transfer = Id128{9, 9};
  peer.say(m);  // the connection still works
  auto result = peer.hear(wire::Type::kResult);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->code, static_cast<uint16_t>(Code::kNotFound));
  expect_unharmed();
}

TEST_F(HostileTest, HeaderThatLiesAboutTheLengthWritesNothing) {
  RawPeer peer(rig.receiver->address());
  peer.hello();
  peer.send(wire::kRecordAm, wire::encode(header(0, 1000)), std::string(70000, 'x'),
            UCP_AM_SEND_FLAG_RNDV);
  auto result = peer.hear(wire::Type::kResult);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->code, static_cast<uint16_t>(Code::kDataLoss));
  EXPECT_EQ(expected.events.failure(), Code::kDataLoss);
  EXPECT_TRUE(expected.memory.all(0xaa));
}

TEST_F(HostileTest, ALandingBelongsToTheConnectionThatCameFirst) {
  RawPeer first(rig.receiver->address()), second(rig.receiver->address());
  first.hello();
  second.hello();
  first.send(wire::kRecordAm, wire::encode(header(0, 1000)), std::string(1000, 'x'));
  ASSERT_TRUE(expected.events.wait_records(1));
  second.send(wire::kRecordAm, wire::encode(header(1, 100000)), std::string(100000, 'y'));
  auto result = second.hear(wire::Type::kResult);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->code, static_cast<uint16_t>(Code::kMismatch));
  EXPECT_EQ(expected.events.records(), 1u);
}

TEST_F(HostileTest, MutePeersAreClosedAndConnectionsAreBounded) {
  TransportConfig config = config_for(Kind::kUcxTcp);
  config.connections_max = 1;
  config.connect_timeout_ms = 400;
  Rig small(Kind::kUcxTcp, config);
  Expected landing(*small.receiver, {100});
  State state({100});
  {
    RawPeer mute(small.receiver->address());
    wire::Message ping;
    mute.say(ping);  // brings the connection up; a ping is no hello
    RawPeer more(small.receiver->address());
    EXPECT_TRUE(more.cut_off());
    EXPECT_TRUE(mute.cut_off());  // by the hello's timeout
  }
  small.sender = small.new_sender(config_for(Kind::kUcxTcp));
  SendRecorder events;
  auto channel = small.sender->open(landing.address, after_ms(60000), events.fn());
  ASSERT_TRUE(channel.ok());
  post_all(*small.sender, *channel, state);
  EXPECT_TRUE(events.complete()) << events.message();
}

TEST(UcxLogTest, LinesOfUcxGoToTheSink) {
  static std::vector<std::string> lines;
  redirect_ucx_log([](bool, std::string_view line) { lines.emplace_back(line); });
  TransportConfig config = config_for(Kind::kUcxTcp);
  config.ucx_devices = "nosuch0";
  EXPECT_FALSE(make_ucx_sender(config).ok());
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.front().find("nosuch0"), std::string::npos) << lines.front();
}

TEST(UcxAddressTest, PortTakenIsAddressInUse) {
  Rig rig(Kind::kUcxTcp);
  auto second = make_ucx_receiver(config_for(Kind::kUcxTcp), rig.receiver->address());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAddressInUse) << second.error().message;
}

TEST(UcxAddressTest, UnknownDeviceOrTransportIsUnsupported) {
  TransportConfig config = config_for(Kind::kUcxTcp);
  config.ucx_devices = "nosuch0";
  auto made = make_ucx_sender(config);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kUnsupported) << made.error().message;
  EXPECT_NE(made.error().message.find("nosuch0"), std::string::npos);
  config = config_for(Kind::kUcxTcp);
  config.ucx_transports = "pigeon";
  EXPECT_EQ(make_ucx_receiver(config, kAnyPort).error().code, Code::kUnsupported);
}

TEST(UcxAddressTest, DescribesVersionTransportsAndDevices) {
  auto line = describe_ucx(config_for(Kind::kUcxShm));
  ASSERT_TRUE(line.ok());
  EXPECT_NE(line->find(ucx_version()), std::string::npos);
  EXPECT_NE(line->find("tcp/lo"), std::string::npos) << *line;
  EXPECT_EQ(line->find("eth0"), std::string::npos) << *line;
}

TEST(UcxAddressTest, NoticesSayWhatWasChosenAndHostNamesResolve) {
  TransportConfig config = config_for(Kind::kUcxShm);
  auto lines = std::make_shared<std::vector<std::string>>();
  auto mutex = std::make_shared<std::mutex>();
  config.on_notice = [=](std::string_view line) {
    std::lock_guard lock(*mutex);
    lines->emplace_back(line);
  };
  Rig rig(Kind::kUcxShm, config);
  Expected expected(*rig.receiver, {100});
  expected.address.state_address.host = "localhost";
  State state({100});
  SendRecorder events;
  auto channel = rig.sender->open(expected.address, after_ms(60000), events.fn());
  ASSERT_TRUE(channel.ok());
  post_all(*rig.sender, *channel, state);
  ASSERT_TRUE(events.complete()) << events.message();
  rig.sender.reset();
  std::lock_guard lock(*mutex);
  ASSERT_FALSE(lines->empty());
  EXPECT_NE(lines->front().find("/memory"), std::string::npos) << lines->front();
}

TEST(UcxAddressTest, IdleConnectionsAreClosedAndDialledAnew) {
  TransportConfig config = config_for(Kind::kUcxTcp);
  config.idle_close_ms = 100;
  Rig rig(Kind::kUcxTcp, config);
  State state({100});
  for (uint64_t round = 1; round <= 2; ++round) {
    Expected expected(*rig.receiver, {100});
    SendRecorder events;
    auto channel = rig.sender->open(expected.address, after_ms(60000), events.fn());
    ASSERT_TRUE(channel.ok());
    post_all(*rig.sender, *channel, state);
    ASSERT_TRUE(events.complete()) << events.message();
    EXPECT_EQ(rig.sender->stats().connections_opened, round);
    const TimePoint until = after_ms(30000);
    while (rig.receiver->stats().connections_open + rig.sender->stats().connections_open > 0 &&
           SteadyClock::now() < until) {
      usleep(5000);
    }
    EXPECT_EQ(rig.sender->stats().connections_open, 0u);
    EXPECT_EQ(rig.receiver->stats().connections_open, 0u);
  }
  EXPECT_EQ(rig.sender->stats().connections_lost, 0u);
  EXPECT_EQ(rig.receiver->stats().connections_lost, 0u) << "a goodbye is not a loss";
}

TEST(UcxAddressTest, PrivilegedOrForeignListenAddressIsAClearError) {
  auto made = make_ucx_receiver(config_for(Kind::kUcxTcp), HostPort{"192.0.2.1", 0});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("192.0.2.1"), std::string::npos) << made.error().message;
  EXPECT_FALSE(make_ucx_receiver(config_for(Kind::kUcxTcp), {"no.such.host.invalid", 0}).ok());
}

}  // namespace
}  // namespace akv::transport
