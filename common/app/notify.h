// Tells systemd about the phases of a Type=notify service, without its library.
#pragma once

#include <string_view>

namespace akv {

// Sends "READY=1", "STOPPING=1" or "RELOADING=1" to $NOTIFY_SOCKET; nothing where that is not set.
// False where the socket could not be reached, which is no reason to stop.
bool notify_service_manager(std::string_view state);

}  // namespace akv
