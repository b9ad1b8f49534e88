#include "transport/ucx/worker.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "common/base/clock.h"
#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

// Settings and why: README.md, "Settings". Fixed ones are refused by older or smaller builds of
// UCX (unknown key, transport left out): those then run with their own defaults.
struct Setting {
  const char* key;
  const char* value;
};
constexpr int64_t kHandshakeGraceMs = 20;
constexpr const char* kCudaTransports = ",cuda_copy,cuda_ipc";

constexpr Setting kFixedSettings[] = {
    {"POSIX_ERROR_HANDLING", "y"}, {"SYSV_ERROR_HANDLING", "y"}, {"TCP_CM_REUSEADDR", "y"},
    {"TCP_RX_SEG_SIZE", "512K"},   {"TCP_TX_SEG_SIZE", "512K"},
};

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using ConfigPtr = std::unique_ptr<ucp_config_t, ConfigDeleter>;

Status set(ucp_config_t* config, const char* key, const std::string& value) {
  if (value.empty()) return {};
  const ucs_status_t status = ucp_config_modify(config, key, value.c_str());
  if (status == UCS_OK) return {};
  return make_error(Code::kInvalidArgument,
                    std::string("UCX_") + key + "=" + value + ": " + ucs_status_string(status),
                    key);
}

Result<ConfigPtr> read_config(const TransportConfig& c, const std::string& devices) {
  ucp_config_t* raw = nullptr;
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw);
  if (status != UCS_OK) return ucx_error(status, "cannot read the UCX configuration");
  ConfigPtr config(raw);
  for (const Setting& setting : kFixedSettings) {
    (void)ucp_config_modify(config.get(), setting.key, setting.value);
  }
  std::string transports = c.ucx_transports;
  // UCX's own choice has them already.
  if (c.device_memory == DeviceMemory::kCuda && !transports.empty()) transports += kCudaTransports;
  AKV_RETURN_IF_ERROR(set(config.get(), "TLS", transports));
  AKV_RETURN_IF_ERROR(
      set(config.get(), "NET_DEVICES", c.ucx_devices.empty() ? devices : c.ucx_devices));
  return config;
}

}  // namespace

std::string ucx_version() { return ucp_get_version_string(); }

Result<std::string> describe_ucx(const TransportConfig& config) {
  AKV_ASSIGN_OR_RETURN(auto worker, UcxWorker::create(config, ""));
  return worker->describe();
}

std::string device_offer(DeviceMemory memory) {
  switch (memory) {
    case DeviceMemory::kHost:
      return "ucx-device/host";
    case DeviceMemory::kCuda:
      return "ucx-device/cuda";
    case DeviceMemory::kNone:
      break;
  }
  return {};
}

Result<SocketAddress> resolve(const HostPort& address) {
  const bool wildcard = address.host.empty() || address.host == "*";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(wildcard ? "0.0.0.0" : address.host.c_str(),
                             std::to_string(address.port).c_str(), &hints, &list);
  if (rc != 0) {
    return make_error(Code::kUnavailable,
                      "cannot resolve " + address.str() + ": " + gai_strerror(rc));
  }
  SocketAddress out;
  std::memcpy(&out.storage, list->ai_addr, list->ai_addrlen);
  out.size = list->ai_addrlen;
  freeaddrinfo(list);
  return out;
}

HostPort to_host_port(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return {text, ntohs(in.sin_port)};
  }
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(storage);
  inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
  return {text, ntohs(in6.sin6_port)};
}

Error ucx_error(int status, const std::string& what) {
  const auto s = static_cast<ucs_status_t>(status);
  Code code = Code::kInternal;
  switch (s) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_CANCELED:
    case UCS_ERR_IO_ERROR:
      code = Code::kUnavailable;
      break;
    case UCS_ERR_BUSY:
      code = Code::kAddressInUse;
      break;
    case UCS_ERR_NO_DEVICE:
      code = Code::kUnsupported;
      break;
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_INVALID_PARAM:
      code = Code::kInvalidArgument;
      break;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      code = Code::kResourceExhausted;
      break;
    default:
      break;
  }
  return make_error(code, what + ": " + ucs_status_string(s));
}

// Context and worker, with UCX's CUDA transports where they are asked for and work.
Status UcxWorker::open(const TransportConfig& config, const std::string& devices) {
  AKV_ASSIGN_OR_RETURN(ConfigPtr ucx, read_config(config, devices));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "akv";
  ucs_status_t status = ucp_init(&params, ucx.get(), &context_);
  if (status != UCS_OK) {
    context_ = nullptr;
    return ucx_error(status, "UCX cannot use transports '" + config.ucx_transports +
                                 "' on devices '" +
                                 (config.ucx_devices.empty() ? devices : config.ucx_devices) + "'");
  }
  device_memory_ = config.device_memory;
  ucp_context_attr_t attr{};
  attr.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (config.device_memory == DeviceMemory::kCuda &&
      (ucp_context_query(context_, &attr) != UCS_OK ||
       (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0)) {
    device_memory_ = DeviceMemory::kNone;
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // The factory makes the worker, the progress thread uses it: one at a time.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return ucx_error(status, "cannot create a UCX worker");
  }
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return ucx_error(status, "UCX has no wake-up descriptor");
  return {};
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const TransportConfig& config,
                                                     const std::string& devices) {
  std::unique_ptr<UcxWorker> self(new UcxWorker);
  Status opened = self->open(config, devices);
  if (config.device_memory == DeviceMemory::kCuda &&
      (!opened.ok() || self->device_memory_ == DeviceMemory::kNone)) {
    if (config.on_notice) {
      config.on_notice("UCX leaves device memory alone: " +
                       (opened.ok() ? "it has no CUDA transport here" : opened.error().message));
    }
    TransportConfig host_only = config;
    host_only.device_memory = DeviceMemory::kNone;
    self.reset(new UcxWorker);
    opened = self->open(host_only, devices);
  }
  AKV_RETURN_IF_ERROR(opened);
  return self;
}

UcxWorker::~UcxWorker() {
  stop_listening();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

void UcxWorker::abandon() {
  listener_ = nullptr;
  worker_ = nullptr;
  context_ = nullptr;
}

Result<HostPort> UcxWorker::listen(const HostPort& address, RequestFn on_request, void* arg) {
  AKV_ASSIGN_OR_RETURN(SocketAddress where, resolve(address));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&where.storage);
  params.sockaddr.addrlen = where.size;
  params.conn_handler.cb = on_request;
  params.conn_handler.arg = arg;
  ucs_status_t status = ucp_listener_create(worker_, &params, &listener_);
  if (status != UCS_OK) return ucx_error(status, "cannot listen at " + address.str());
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener_, &attr);
  if (status != UCS_OK) return ucx_error(status, "cannot ask for the address of the listener");
  return HostPort{address.host, to_host_port(attr.sockaddr).port};
}

void UcxWorker::reject(ucp_conn_request* request) {
  if (listener_ != nullptr) (void)ucp_listener_reject(listener_, request);
}

// UCX (1.22) keeps a pointer to the listener in connections that are accepted but have not sent
// their first bytes, and follows it when these come: such a handshake gets a moment to end, as it
// does within a millisecond on a healthy network.
void UcxWorker::stop_listening() {
  if (listener_ == nullptr) return;
  const TimePoint end = after_ms(kHandshakeGraceMs);
  while (SteadyClock::now() < end) {
    if (!progress()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ucp_listener_destroy(listener_);
  listener_ = nullptr;
}

bool UcxWorker::progress() { return ucp_worker_progress(worker_) != 0; }

void UcxWorker::wait(int timeout_ms, bool (*awake)(void* arg), void* arg) {
  if (ucp_worker_arm(worker_) != UCS_OK) return;  // busy: there is work
  if (awake(arg)) return;
  pollfd fd{event_fd_, POLLIN, 0};
  (void)::poll(&fd, 1, timeout_ms);  // EINTR is a wake-up like any other
}

void UcxWorker::signal() { (void)ucp_worker_signal(worker_); }

std::string UcxWorker::describe() const {
  char* text = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  ucp_context_print_info(context_, out);
  std::fclose(out);
  // Lines of the form "# resource 1 : md 0 dev 1 flags -- tcp/lo".
  std::string line = "ucx " + ucx_version() + ":";
  std::string_view rest(text, size);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view row = rest.substr(0, end);
    const size_t mark = row.find(" -- ");
    if (mark != std::string_view::npos && row.find("resource") != std::string_view::npos) {
      line.append(" ").append(row.substr(mark + 4));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::free(text);
  return line;
}

}  // namespace akv::transport
