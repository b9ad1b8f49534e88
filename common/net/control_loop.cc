#include "common/net/control_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/net/control_impl.h"
#include "common/net/thread_signals.h"

namespace akv::net {
namespace {

// Messages read from one socket before timers and other sockets get their turn.
constexpr int kReadBatch = 256;

}  // namespace

ControlLoop::Impl::Impl(ControlLoopOptions options)
    : options_(std::move(options)), incarnation_(Id128::random().lo) {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  AKV_CHECK(wake_fd_ >= 0);
}

ControlLoop::Impl::~Impl() {
  stop();
  peers_.clear();
  router_.close();
  zap_.close();
  close(wake_fd_);
}

void ControlLoop::Impl::start(ControlHandlers handlers) {
  AKV_CHECK(!thread_.joinable());
  handlers_ = std::move(handlers);
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), options_.thread_name.substr(0, 15).c_str());
}

void ControlLoop::Impl::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  // The counter only has to be non-zero: a full one wakes, too.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(posted_);
}

bool ControlLoop::Impl::post(std::function<void()> fn, bool force) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    if (!force && posted_.size() >= options_.max_posted) return false;
    posted_.push_back(std::move(fn));
    if (posted_.size() > 1) return true;  // the wake-up of the first one is still to be seen
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  return true;
}

void ControlLoop::Impl::run() {
  thread_id_ = std::this_thread::get_id();
  next_beat_ = SteadyClock::now();
  while (!stopping_) {
    wait();
    run_posted();
    if (zap_.is_open()) read_zap();
    if (router_.is_open()) read_router();
    for (auto& [id, peer] : peers_) {
      if (!peer.dial || peer.dial->reopen_at) continue;
      read_dial(peer);
      read_monitor(peer);
    }
    timers_.run_due(SteadyClock::now());
    drop_broken();
    beat();
  }
}

void ControlLoop::Impl::wait() {
  std::vector<zmq_pollitem_t> items;
  items.push_back({nullptr, wake_fd_, ZMQ_POLLIN, 0});
  if (router_.is_open()) items.push_back({router_.handle(), 0, ZMQ_POLLIN, 0});
  if (zap_.is_open()) items.push_back({zap_.handle(), 0, ZMQ_POLLIN, 0});
  TimePoint until = next_beat_;
  if (const auto next = timers_.next()) until = std::min(until, *next);
  for (const auto& [id, peer] : peers_) {
    if (!peer.dial) continue;
    if (peer.dial->reopen_at) {
      until = std::min(until, *peer.dial->reopen_at);
      continue;
    }
    items.push_back({peer.dial->socket.handle(), 0, ZMQ_POLLIN, 0});
    items.push_back({peer.dial->monitor.handle(), 0, ZMQ_POLLIN, 0});
  }
  const double wait_ms = std::max(0.0, ms_between(SteadyClock::now(), until));
  // Rounded up, so that a timer is due when the poll ends.
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(wait_ms) + 1);
}

void ControlLoop::Impl::run_posted() {
  uint64_t counter = 0;
  [[maybe_unused]] const ssize_t got = read(wake_fd_, &counter, sizeof counter);
  std::deque<std::function<void()>> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(posted_);
  }
  for (const auto& fn : batch) {
    if (stopping_) return;
    fn();
  }
}

void ControlLoop::Impl::read_zap() {
  std::vector<std::string> parts;
  for (int i = 0; i < kReadBatch && zap_.receive(parts, 8) == 0; ++i) {
    const std::vector<std::string> answer = gate_.answer(parts);
    // A REP socket must answer each request, and libzmq sends well-formed ones only.
    AKV_CHECK(!answer.empty());
    zap_.send({answer.begin(), answer.end()});
  }
}

void ControlLoop::Impl::read_router() {
  std::vector<std::string> parts;
  for (int i = 0; i < kReadBatch && router_.receive(parts, 4) == 0; ++i)
    on_router_message(std::move(parts));
}

void ControlLoop::Impl::on_router_message(std::vector<std::string>&& parts) {
  const std::string route = std::move(parts[0]);
  parts.erase(parts.begin());
  std::optional<WireMessage> wire = decode_frames(std::move(parts), options_);
  if (!wire || wire->kind == WireMessage::Kind::kPong) return;
  const TimePoint now = SteadyClock::now();
  if (wire->kind == WireMessage::Kind::kMessage) {
    // Nothing is taken from a peer that we gave up: its next PONG tells it, and it starts anew.
    const auto it = by_route_.find(route);
    if (it == by_route_.end()) return;
    peers_.at(it->second).heard = now;
    if (handlers_.on_message) handlers_.on_message(it->second, std::move(wire->message));
    return;
  }
  Peer* peer = peer_of_route(route, now);
  if (peer == nullptr) return;
  peer->heard = now;
  peer->interval_ms = static_cast<int>(std::clamp<uint32_t>(wire->ping.interval_ms, 10, 60000));
  send_pong(*peer);
  if (!peer->up) go_up(*peer);
  if (handlers_.on_heartbeat) handlers_.on_heartbeat(peer->id, wire->message.body);
}

ControlLoop::Impl::Peer* ControlLoop::Impl::peer_of_route(const std::string& route, TimePoint now) {
  if (const auto it = by_route_.find(route); it != by_route_.end()) return &peers_.at(it->second);
  if (by_route_.size() >= options_.max_peers) return nullptr;
  const PeerId id = ++last_peer_;
  by_route_[route] = id;
  Peer& peer = peers_[id];
  peer.id = id;
  peer.route = route;
  peer.heard = now;
  return &peer;
}

void ControlLoop::Impl::beat() {
  const TimePoint now = SteadyClock::now();
  for (auto& [id, peer] : peers_)
    if (peer.dial && peer.dial->reopen_at && *peer.dial->reopen_at <= now) open_dial(peer);
  if (now < next_beat_) return;
  // After a pause of this process (a debugger, SIGSTOP) all peers look silent; they get new time.
  const bool late = ms_between(next_beat_, now) > options_.heartbeat_ms;
  next_beat_ = now + std::chrono::milliseconds(options_.heartbeat_ms);
  drop_lost(now, late);
  for (auto& [id, peer] : peers_)
    if (peer.dial && !peer.dial->reopen_at) send_ping(*peer.dial);
}

void ControlLoop::Impl::drop_lost(TimePoint now, bool we_were_late) {
  std::vector<PeerId> lost;
  for (auto& [id, peer] : peers_) {
    if (!peer.up) continue;
    if (we_were_late) peer.heard = now;
    const int interval_ms = peer.dial ? options_.heartbeat_ms : peer.interval_ms;
    if (ms_between(peer.heard, now) > options_.lost_after * interval_ms) lost.push_back(id);
  }
  for (const PeerId id : lost) {
    Peer& peer = peers_.at(id);
    if (peer.dial) reopen_later(peer, options_.reconnect_min_ms);
    go_down(peer, "heartbeat lost");
  }
}

void ControlLoop::Impl::drop_broken() {
  if (!std::exchange(any_broken_, false)) return;
  std::vector<PeerId> broken;
  for (const auto& [id, peer] : peers_)
    if (peer.broken) broken.push_back(id);
  for (const PeerId id : broken) {
    Peer& peer = peers_.at(id);
    peer.broken = false;
    if (!peer.up) continue;
    // Under a fresh identity, so that the other side ends what it held for the old one.
    if (peer.dial) reopen_later(peer, options_.reconnect_min_ms);
    go_down(peer, "connection lost");
  }
}

Status ControlLoop::Impl::send(PeerId id, const ControlMessage& message) {
  if (!valid_type(message.type) || message.body.size() > options_.max_body_bytes ||
      message.blob.size() > options_.max_blob_bytes)
    return make_error(Code::kInvalidArgument, "a control message is over its bounds");
  const auto it = peers_.find(id);
  if (it == peers_.end() || !it->second.up || it->second.broken)
    return make_error(Code::kUnavailable, "the peer is not connected");
  Peer& peer = it->second;
  const std::string header = encode_header(message.type);
  std::vector<std::string_view> parts;
  if (!peer.dial) parts.push_back(peer.route);
  parts.insert(parts.end(), {header, message.body});
  if (!message.blob.empty()) parts.push_back(message.blob);
  const int error = (peer.dial ? peer.dial->socket : router_).send(parts);
  if (error == 0) return {};
  if (error == EAGAIN) return make_error(Code::kResourceExhausted, "the peer's send queue is full");
  peer.broken = any_broken_ = true;
  return make_error(Code::kUnavailable, "the peer is gone: " + errno_text(error));
}

Status ControlLoop::Impl::send_or_lose_peer(PeerId id, const ControlMessage& message) {
  Status status = send(id, message);
  if (!status.ok() && status.error().code == Code::kResourceExhausted)
    peers_.at(id).broken = any_broken_ = true;
  return status;
}

void ControlLoop::Impl::send_pong(const Peer& peer) {
  const std::string header = encode_header(Pong{incarnation_, peer.id});
  // A full queue is not worth an error: the next beat comes.
  router_.send({peer.route, header, heartbeat_body()});
}

void ControlLoop::Impl::send_ping(Dial& dial) {
  const std::string header = encode_header(Ping{static_cast<uint32_t>(options_.heartbeat_ms)});
  dial.socket.send({header, heartbeat_body()});
}

const std::string& ControlLoop::Impl::heartbeat_body() {
  const TimePoint now = SteadyClock::now();
  if (handlers_.heartbeat_body && ms_between(body_made_, now) >= options_.heartbeat_ms / 2.0) {
    body_ = handlers_.heartbeat_body();
    if (body_.size() > options_.max_body_bytes) body_.clear();
    body_made_ = now;
  }
  return body_;
}

void ControlLoop::Impl::go_up(Peer& peer) {
  peer.up = true;
  if (handlers_.on_peer)
    handlers_.on_peer({peer.id, true, peer.dial != nullptr, peer.dial ? peer.dial->text : "", ""});
}

void ControlLoop::Impl::report_down(const Peer& peer, const std::string& reason) {
  if (handlers_.on_peer)
    handlers_.on_peer(
        {peer.id, false, peer.dial != nullptr, peer.dial ? peer.dial->text : "", reason});
}

void ControlLoop::Impl::go_down(Peer& peer, const std::string& reason) {
  peer.up = false;
  report_down(peer, reason);
  if (peer.dial) return;
  by_route_.erase(peer.route);
  peers_.erase(peer.id);
}

void ControlLoop::Impl::hang_up(PeerId id) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  if (it->second.dial) close_dial(it->second);
  by_route_.erase(it->second.route);
  peers_.erase(it);
}

const ControlLoop::Impl::Peer* ControlLoop::Impl::find(PeerId peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? nullptr : &it->second;
}

// ---- the public class ---------------------------------------------------------------------------

ControlLoop::ControlLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlLoop::~ControlLoop() = default;

Result<std::unique_ptr<ControlLoop>> ControlLoop::create(ControlLoopOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  AKV_RETURN_IF_ERROR(impl->open());
  return std::unique_ptr<ControlLoop>(new ControlLoop(std::move(impl)));
}

void ControlLoop::start(ControlHandlers handlers) { impl_->start(std::move(handlers)); }
void ControlLoop::stop() { impl_->stop(); }
std::optional<HostPort> ControlLoop::address() const { return impl_->bound_; }
bool ControlLoop::post(std::function<void()> fn) { return impl_->post(std::move(fn), false); }
bool ControlLoop::on_control_thread() const { return impl_->on_thread(); }
PeerId ControlLoop::dial(const HostPort& address) { return impl_->dial(address); }

void ControlLoop::hang_up(PeerId peer) {
  impl_->post([impl = impl_.get(), peer] { impl->hang_up(peer); }, true);
}

void ControlLoop::set_curve_peers(std::vector<CurvePeer> peers) {
  impl_->post([impl = impl_.get(), peers = std::move(peers)] { impl->set_curve_peers(peers); },
              true);
}

Status ControlLoop::send(PeerId peer, const ControlMessage& message) {
  return impl_->send(peer, message);
}

Status ControlLoop::send_or_lose_peer(PeerId peer, const ControlMessage& message) {
  return impl_->send_or_lose_peer(peer, message);
}

double ControlLoop::silence_ms(PeerId peer) const {
  const Impl::Peer* found = impl_->find(peer);
  return found == nullptr || !found->up ? -1.0 : ms_since(found->heard);
}

bool ControlLoop::is_up(PeerId peer) const {
  const Impl::Peer* found = impl_->find(peer);
  return found != nullptr && found->up;
}

TimerId ControlLoop::call_after(int64_t delay_ms, std::function<void()> fn) {
  return impl_->timers_.add(after_ms(delay_ms), 0, std::move(fn));
}

TimerId ControlLoop::call_every(int64_t period_ms, std::function<void()> fn) {
  period_ms = std::max<int64_t>(period_ms, 1);
  return impl_->timers_.add(after_ms(period_ms), period_ms, std::move(fn));
}

void ControlLoop::cancel_timer(TimerId timer) { impl_->timers_.cancel(timer); }

}  // namespace akv::net
