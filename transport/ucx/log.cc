// UCX's own log lines as ours.
#include <ucs/debug/log_def.h>

#include <cstdio>
#include <functional>
#include <string_view>

#include "transport/ucx/ucx_transport.h"

namespace akv::transport {
namespace {

// UCX has one stack of log handlers per process, without an argument: the sink has to be one too.
// Never destroyed, since UCX's threads may log at exit.
std::function<void(bool, std::string_view)>* sink = nullptr;

ucs_log_func_rc_t on_log(const char*, unsigned, const char*, ucs_log_level_t level,
                         const ucs_log_component_config_t* component, const char* format,
                         va_list args) {
  if (level > component->log_level) return UCS_LOG_FUNC_RC_STOP;
  char line[1024];
  va_list copy;
  va_copy(copy, args);
  const int written = std::vsnprintf(line, sizeof(line), format, copy);
  va_end(copy);
  if (written > 0) (*sink)(level <= UCS_LOG_LEVEL_ERROR, line);
  // A fatal line goes to UCX's handler too: the process ends there.
  return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void redirect_ucx_log(std::function<void(bool error, std::string_view line)> to) {
  if (sink != nullptr || !to) return;
  sink = new std::function<void(bool, std::string_view)>(std::move(to));
  ucs_log_push_handler(on_log);
}

}  // namespace akv::transport
