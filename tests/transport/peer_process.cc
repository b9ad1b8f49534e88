// The other end of a transfer in a process of its own, for tests that kill or stop it.
//   peer_process receiver KIND HOST:PORT RECORDS BYTES          prints "listening HOST:PORT"
//   peer_process sender   KIND HOST:PORT RECORDS BYTES POST     posts POST records, then waits
// Both print one line for each event of the transfer (record, complete, failed CODE) and end when
// stdin does. The transfer's id, token, attempt and content are fixed: see peer_process.h.
#include <gtest/gtest.h>  // rig.h uses EXPECT
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/transport/peer_process.h"
#include "tests/transport/rig.h"

namespace akv::transport {
namespace {

template <class Event>
void print(const Event& event) {
  if (std::holds_alternative<Complete>(event)) {
    std::puts("complete");
  } else if (const auto* failed = std::get_if<Failed>(&event)) {
    std::printf("failed %s\n", std::string(code_name(failed->error.code)).c_str());
  } else {
    std::puts("record");
  }
  std::fflush(stdout);
}

void wait_for_end_of_input() {
  char c = 0;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
}

int run_receiver(const TransportConfig& config, const HostPort& where, size_t records,
                 size_t bytes) {
  State memory(std::vector<size_t>(records, bytes));
  auto receiver = make_ucx_receiver(config, where);
  if (!receiver.ok()) {
    std::printf("error %s\n", receiver.error().message.c_str());
    return 1;
  }
  LandingSpec spec{kPeerTransfer,    kPeerToken,      kPeerAttempt,
                   memory.records(), after_ms(60000), [](const LandEvent& e) { print(e); }};
  if (!(*receiver)->expect(std::move(spec)).ok()) return 1;
  std::printf("listening %s\n", (*receiver)->address().str().c_str());
  std::fflush(stdout);
  wait_for_end_of_input();
  return 0;
}

int run_sender(const TransportConfig& config, const HostPort& to, size_t records, size_t bytes,
               size_t post) {
  State state(std::vector<size_t>(records, bytes), kPeerSeed);
  auto sender = make_ucx_sender(config);
  if (!sender.ok()) return 1;
  LandingAddress address{to, kPeerTransfer, kPeerToken, kPeerAttempt, "ucx", ucx_version(), {}};
  auto channel = (*sender)->open(address, after_ms(60000), [](const SendEvent& e) { print(e); });
  if (!channel.ok()) return 1;
  for (size_t i = 0; i < post; ++i) {
    (void)(*sender)->post(*channel, static_cast<uint32_t>(i), payload(state.record(i)));
  }
  wait_for_end_of_input();
  return 0;
}

int run(int argc, char** argv) {
  if (argc < 6) return 2;
  const std::string mode = argv[1];
  const Kind kind = std::string(argv[2]) == "tcp" ? Kind::kUcxTcp : Kind::kUcxShm;
  auto where = parse_host_port(argv[3]);
  if (!where.ok()) return 2;
  const size_t records = std::strtoul(argv[4], nullptr, 10);
  const size_t bytes = std::strtoul(argv[5], nullptr, 10);
  const TransportConfig config = quick_to_lose(kind);
  if (mode == "receiver") return run_receiver(config, *where, records, bytes);
  return argc < 7 ? 2
                  : run_sender(config, *where, records, bytes, std::strtoul(argv[6], nullptr, 10));
}

}  // namespace
}  // namespace akv::transport

int main(int argc, char** argv) { return akv::transport::run(argc, argv); }
