// One UCX context and worker as RAII, and the mapping of UCX's words to ours. No UCX header here.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/units.h"
#include "transport/transport.h"

struct ucp_context;
struct ucp_worker;
struct ucp_listener;
struct ucp_conn_request;

namespace akv::transport {

// A resolved address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
// Resolves by the system's resolver (blocks for names, not for literals). A wildcard ("*", "") is
// 0.0.0.0. kUnavailable when the name does not resolve.
Result<SocketAddress> resolve(const HostPort& address);
// The literal form.
HostPort to_host_port(const sockaddr_storage& storage);

// What a UCX status means at our border, with `what` before UCX's own words.
Error ucx_error(int status, const std::string& what);

// A receiver's item of the extension where records can land in device memory of this kind; empty
// where they cannot. Both ends' must be alike.
std::string device_offer(DeviceMemory memory);

// Thread-safe: signal(). Everything else: one thread at a time.
class UcxWorker {
 public:
  // `devices` overrides config.ucx_devices when that is empty. Errors as make_ucx_sender.
  static Result<std::unique_ptr<UcxWorker>> create(const TransportConfig& config,
                                                   const std::string& devices);
  // REQUIRES: no endpoint and no outstanding operation is left (see abandon()).
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Listens; connection requests call on_request on the thread that makes progress.
  using RequestFn = void (*)(ucp_conn_request* request, void* arg);
  Result<HostPort> listen(const HostPort& address, RequestFn on_request, void* arg);
  void reject(ucp_conn_request* request);
  void stop_listening();

  // One pass over the network; false when there was nothing to do.
  bool progress();
  // Sleeps until something happens, signal() or `timeout_ms` (rounded up; < 0: no limit). Returns
  // at once when there is work or `awake` says so after arming.
  void wait(int timeout_ms, bool (*awake)(void* arg), void* arg);
  void signal();

  // Gives the UCX objects up without touching them: for operations that never completed. Nothing
  // moves without progress(), so buffers are safe afterwards.
  void abandon();

  ucp_worker* handle() const { return worker_; }
  // What device memory is here: config.device_memory, or kNone where UCX cannot move it.
  DeviceMemory device_memory() const { return device_memory_; }
  // "ucx 1.22.0: tcp/lo posix/memory ...".
  std::string describe() const;

 private:
  UcxWorker() = default;
  Status open(const TransportConfig& config, const std::string& devices);
  ucp_context* context_ = nullptr;
  ucp_worker* worker_ = nullptr;
  ucp_listener* listener_ = nullptr;
  int event_fd_ = -1;
  DeviceMemory device_memory_ = DeviceMemory::kNone;
};

}  // namespace akv::transport
