// NCCL by its own header, found at run time by the dynamic loader: a machine without it runs the
// same binary.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "transport/nccl/nccl.h"

namespace akv::transport {
namespace {

constexpr uint32_t kWindow = 4;
constexpr int64_t kCallTimeoutMs = 5000;

// The functions of the library that we use.
struct Functions {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
};

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Functions& f) {
  return find(library, "ncclGetVersion", f.get_version) &&
         find(library, "ncclGetUniqueId", f.get_unique_id) &&
         find(library, "ncclCommInitRankConfig", f.comm_init) &&
         find(library, "ncclCommGetAsyncError", f.async_error) &&
         find(library, "ncclCommAbort", f.comm_abort) && find(library, "ncclSend", f.send) &&
         find(library, "ncclRecv", f.recv) && find(library, "ncclGroupStart", f.group_start) &&
         find(library, "ncclGroupEnd", f.group_end) &&
         find(library, "ncclGetErrorString", f.error_string);
}

Status cuda_status(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  const Code code =
      status == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kUnavailable;
  return make_error(code, std::string(what) + ": " + cudaGetErrorString(status));
}

// What a link is to be: one of two ranks, or alone.
struct Place {
  int ranks = 2;
  int rank = 0;
  int peer() const { return ranks - 1 - rank; }
};

class Link final : public NcclLink {
 public:
  Link(const Functions& functions, int ordinal, const Place& place)
      : f_(functions), ordinal_(ordinal), place_(place) {}

  ~Link() override {
    abort();
    if (cudaSetDevice(ordinal_) != cudaSuccess) return;
    for (Slot& slot : slots_) {
      if (slot.over != nullptr) (void)cudaEventDestroy(slot.over);
      if (slot.fetched != nullptr) (void)cudaEventDestroy(slot.fetched);
      if (slot.staging != nullptr) (void)cudaFree(slot.staging);
    }
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (fetching_ != nullptr) (void)cudaStreamDestroy(fetching_);
  }

  Status start(const NcclUniqueId& id) {
    AKV_RETURN_IF_ERROR(cuda_status(cudaSetDevice(ordinal_), "cannot use the device"));
    AKV_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                                    "cannot create a stream"));
    AKV_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&fetching_, cudaStreamNonBlocking),
                                    "cannot create a stream"));
    for (Slot& slot : slots_) {
      for (cudaEvent_t* event : {&slot.over, &slot.fetched}) {
        AKV_RETURN_IF_ERROR(cuda_status(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                                        "cannot create an event"));
      }
    }
    ncclUniqueId raw;
    static_assert(sizeof(raw) == sizeof(id.bytes));
    std::memcpy(&raw, id.bytes.data(), sizeof(raw));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = 4;  // a transfer must not take the processors that a step needs
    return nccl_status(f_.comm_init(&comm_, place_.ranks, raw, place_.rank, &config));
  }

  Result<bool> ready() override {
    AKV_ASSIGN_OR_RETURN(const bool settled, settled_now());
    return settled;
  }

  Result<uint64_t> send(std::span<const std::byte> host, const std::byte* device) override {
    AKV_ASSIGN_OR_RETURN(Slot * slot, next_slot(device == nullptr ? host.size() : 0));
    const std::byte* from = device;
    if (from == nullptr) {
      from = slot->staging;
      AKV_RETURN_IF_ERROR(cuda_status(
          cudaMemcpyAsync(slot->staging, host.data(), host.size(), cudaMemcpyHostToDevice, stream_),
          "cannot stage a record"));
    }
    if (alone()) AKV_RETURN_IF_ERROR(nccl_status(f_.group_start()));
    const ncclResult_t sent = f_.send(from, host.size(), ncclInt8, place_.peer(), comm_, stream_);
    // Alone, the group is open until receive(), and so is the call.
    AKV_RETURN_IF_ERROR(alone() ? nccl_status(sent) : finish_call(sent));
    return mark(*slot);
  }

  Result<uint64_t> receive(std::span<std::byte> host, std::byte* device) override {
    AKV_ASSIGN_OR_RETURN(Slot * slot, next_slot(device == nullptr ? host.size() : 0));
    std::byte* to = device == nullptr ? slot->staging : device;
    if (device == nullptr) slot->host = host;
    const ncclResult_t received = f_.recv(to, host.size(), ncclInt8, place_.peer(), comm_, stream_);
    if (!alone()) {
      AKV_RETURN_IF_ERROR(finish_call(received));
      return mark(*slot);
    }
    const ncclResult_t ended = f_.group_end();  // also after an error: a group must not stay open
    AKV_RETURN_IF_ERROR(nccl_status(received));
    AKV_RETURN_IF_ERROR(finish_call(ended));
    // Only now is the send before in the stream.
    const Slot& send = slots_[(next_ + kWindow - 1) % kWindow];
    AKV_RETURN_IF_ERROR(cuda_status(cudaEventRecord(send.over, stream_), "cannot record an event"));
    return mark(*slot);
  }

  Result<bool> done(uint64_t operation) override {
    AKV_RETURN_IF_ERROR(check_async());
    Slot& slot = slots_[operation % kWindow];
    const cudaError_t status = cudaEventQuery(slot.fetching ? slot.fetched : slot.over);
    if (status == cudaErrorNotReady) return false;
    AKV_RETURN_IF_ERROR(cuda_status(status, "an NCCL operation failed"));
    if (!slot.fetching && !slot.host.empty()) {
      AKV_RETURN_IF_ERROR(fetch(slot));
      return false;
    }
    ++ended_;
    return true;
  }

  uint32_t window() const override { return kWindow; }

  void abort() override {
    if (comm_ == nullptr || cudaSetDevice(ordinal_) != cudaSuccess) return;
    (void)f_.comm_abort(comm_);
    comm_ = nullptr;
    (void)cudaStreamSynchronize(stream_);  // the aborted kernels have left
    (void)cudaStreamSynchronize(fetching_);
  }

 private:
  struct Slot {
    std::byte* staging = nullptr;
    size_t bytes = 0;
    cudaEvent_t over = nullptr;
    std::span<std::byte> host;  // where staged bytes go; empty: nowhere
    bool fetching = false;      // they are on their way
    cudaEvent_t fetched = nullptr;
  };

  bool alone() const { return place_.ranks == 1; }

  // Not in the stream behind the receipt: after an abort that would copy what never came.
  Status fetch(Slot& slot) {
    AKV_RETURN_IF_ERROR(
        cuda_status(cudaMemcpyAsync(slot.host.data(), slot.staging, slot.host.size(),
                                    cudaMemcpyDeviceToHost, fetching_),
                    "cannot fetch a record"));
    slot.fetching = true;
    return cuda_status(cudaEventRecord(slot.fetched, fetching_), "cannot record an event");
  }

  Status nccl_status(ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return {};
    return make_error(Code::kUnavailable, std::string("NCCL: ") + f_.error_string(result));
  }

  // True when no call of ours is still in progress.
  Result<bool> settled_now() const {
    ncclResult_t state = ncclSuccess;
    AKV_RETURN_IF_ERROR(nccl_status(f_.async_error(comm_, &state)));
    AKV_RETURN_IF_ERROR(nccl_status(state));
    return state == ncclSuccess;
  }

  Status check_async() const {
    const auto settled = settled_now();
    return settled.ok() ? Status{} : Status(settled.error());
  }

  // A call on a communicator that does not block may go on inside of NCCL, and the next one must
  // wait for it: at the connection's first use, while NCCL opens its channels.
  Status finish_call(ncclResult_t result) {
    AKV_RETURN_IF_ERROR(nccl_status(result));
    const TimePoint end = after_ms(kCallTimeoutMs);
    for (;;) {
      AKV_ASSIGN_OR_RETURN(const bool settled, settled_now());
      if (settled) return {};
      if (SteadyClock::now() > end) {
        return make_error(Code::kUnavailable, "NCCL does not connect to the peer");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Result<Slot*> next_slot(size_t staging_bytes) {
    if (next_ - ended_ >= kWindow) {
      return make_error(Code::kResourceExhausted, "the NCCL window is full");
    }
    AKV_RETURN_IF_ERROR(cuda_status(cudaSetDevice(ordinal_), "cannot use the device"));
    Slot& slot = slots_[next_ % kWindow];
    slot.host = {};
    slot.fetching = false;
    if (slot.bytes < staging_bytes) {
      if (slot.staging != nullptr) (void)cudaFree(slot.staging);
      slot.bytes = 0;
      void* memory = nullptr;
      AKV_RETURN_IF_ERROR(
          cuda_status(cudaMalloc(&memory, staging_bytes), "no device memory for a transfer"));
      slot.staging = static_cast<std::byte*>(memory);
      slot.bytes = staging_bytes;
    }
    return &slot;
  }

  Result<uint64_t> mark(Slot& slot) {
    AKV_RETURN_IF_ERROR(cuda_status(cudaEventRecord(slot.over, stream_), "cannot record an event"));
    return next_++;
  }

  const Functions f_;  // a copy: links may outlive the library object
  const int ordinal_;
  const Place place_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t fetching_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::array<Slot, kWindow> slots_{};
  uint64_t next_ = 0;
  uint64_t ended_ = 0;
};

class Library final : public Nccl {
 public:
  Library(const Functions& functions, int ordinal, uint32_t version)
      : f_(functions), ordinal_(ordinal), version_(version) {}

  uint32_t version() const override { return version_; }

  Result<NcclUniqueId> unique_id() override {
    ncclUniqueId raw;
    const ncclResult_t result = f_.get_unique_id(&raw);
    if (result != ncclSuccess) {
      return make_error(Code::kUnavailable, std::string("NCCL: ") + f_.error_string(result));
    }
    NcclUniqueId id;
    std::memcpy(id.bytes.data(), &raw, sizeof(raw));
    return id;
  }

  Result<std::unique_ptr<NcclLink>> join(const NcclUniqueId& id, int rank) override {
    return start(id, Place{.ranks = 2, .rank = rank});
  }

  Result<std::unique_ptr<NcclLink>> join_alone() override {
    AKV_ASSIGN_OR_RETURN(const NcclUniqueId id, unique_id());
    return start(id, Place{.ranks = 1, .rank = 0});
  }

 private:
  Result<std::unique_ptr<NcclLink>> start(const NcclUniqueId& id, const Place& place) {
    auto link = std::make_unique<Link>(f_, ordinal_, place);
    AKV_RETURN_IF_ERROR(link->start(id));
    return std::unique_ptr<NcclLink>(std::move(link));
  }

  const Functions f_;
  const int ordinal_;
  const uint32_t version_;
};

}  // namespace

Result<std::shared_ptr<Nccl>> load_nccl(int ordinal) {
  // Never closed: its threads and the driver's may outlive us.
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return make_error(Code::kUnsupported, std::string("no NCCL: ") + dlerror());
  }
  Functions functions;
  int version = 0;
  if (!find_all(library, functions) || functions.get_version(&version) != ncclSuccess) {
    return make_error(Code::kUnsupported, "libnccl.so.2 lacks functions that are needed");
  }
  if (version < NCCL_VERSION(2, 18, 0)) {
    return make_error(Code::kUnsupported,
                      "NCCL " + std::to_string(version) + " is older than 2.18, which is needed");
  }
  return std::shared_ptr<Nccl>(
      std::make_shared<Library>(functions, ordinal, static_cast<uint32_t>(version)));
}

}  // namespace akv::transport
