// How a field looks in a line. Private to common/log, apart for its tests.
#pragma once

#include <string>
#include <string_view>

#include "common/log/log.h"

namespace akv::log_format {

// Appends text as a JSON string with its quotes: control characters are escaped, bytes that are not
// UTF-8 become U+FFFD, and no more than max_bytes of the input are read (then "…" ends it).
void append_json_string(std::string& out, std::string_view text, size_t max_bytes);

// Appends ,"key":value (JSON) or " key=value" (text; quoted where it holds a space or quote).
void append_field(std::string& out, const LogField& field, LogFormat format);

// Appends 2026-01-31T12:34:56.789Z of the system clock.
void append_timestamp(std::string& out);

}  // namespace akv::log_format
