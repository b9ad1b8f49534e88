// Internal to net: threads of a library must not take the process's signals.
#pragma once

#include <pthread.h>

#include <csignal>

namespace akv::net {

// Blocks all signals while alive; threads started meanwhile inherit that, so that signals stay with
// the main thread.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace akv::net
