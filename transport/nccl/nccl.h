// What the NCCL transport needs of NCCL and of a device, as an interface: the library itself
// (nccl_library.cc) or a stand-in of the tests. No NCCL or CUDA header here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/result.h"

namespace akv::transport {

// What the two ranks of a communicator meet by; made by one of them.
struct NcclUniqueId {
  std::array<std::byte, 128> bytes{};
};

// One end of a communicator of two ranks, with a stream of its own. One thread at a time. The
// destructor aborts what is left.
class NcclLink {
 public:
  virtual ~NcclLink() = default;
  NcclLink() = default;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // True once both ranks have joined; never waits. Any error is final.
  virtual Result<bool> ready() = 0;

  // Enqueues one message to the other rank and returns its number (0, 1, ...). The two ends' sends
  // and receives meet in the order they were enqueued. `device`, where not null, is the same bytes
  // in device memory and is sent from; else `host` is staged. Both stay valid until done().
  virtual Result<uint64_t> send(std::span<const std::byte> host, const std::byte* device) = 0;
  // Enqueues the receipt of exactly host.size() bytes: into `device` where not null, and `host` is
  // not touched; else by staging memory into `host`, which is written only once all bytes are here.
  virtual Result<uint64_t> receive(std::span<std::byte> host, std::byte* device) = 0;
  // True once the operation of this number is over: bytes read, or all there; never waits. An error
  // (the peer is gone, the network failed) is final for the link.
  virtual Result<bool> done(uint64_t operation) = 0;
  // Operations that may be outstanding at once; send() and receive() beyond it fail.
  virtual uint32_t window() const = 0;

  // Ends everything: when it returns, no memory is read or written by the link. Repeatable.
  virtual void abort() = 0;
};

// The library on one device. Thread-safe.
class Nccl {
 public:
  virtual ~Nccl() = default;
  // NCCL's own number, e.g. 22809; both ends need the same.
  virtual uint32_t version() const = 0;
  virtual Result<NcclUniqueId> unique_id() = 0;
  // Begins to join a communicator of two as rank 0 or 1; does not wait for the other.
  virtual Result<std::unique_ptr<NcclLink>> join(const NcclUniqueId& id, int rank) = 0;
  // A communicator of this rank alone: each send() is followed by the receive() that it meets, and
  // both are over or neither. To prove and measure the library on one GPU.
  virtual Result<std::unique_ptr<NcclLink>> join_alone() = 0;
};

// NCCL (libnccl.so.2, found by the dynamic loader) on CUDA device `ordinal`. kUnsupported with the
// reason where this build has no NCCL, the library is not there or is older than its header.
Result<std::shared_ptr<Nccl>> load_nccl(int ordinal);

}  // namespace akv::transport
