// Fills a Schema from the command line, the environment and a JSON file; flag beats environment
// beats file beats default.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace akv {

enum class Action { kRun, kHelp, kVersion, kDumpConfig, kCheck };

// The command line, split but not yet applied.
struct CommandLine {
  Action action = Action::kRun;
  std::string config_file;                                 // of --config; empty: none
  std::vector<std::pair<std::string, std::string>> items;  // name, value, in order
};

// "--name value", "--name=value"; a bool may stand alone. Unknown names and stray words are
// kInvalidArgument with the nearest name. args is without the program's name.
Result<CommandLine> parse_command_line(const Schema& schema, std::span<const char* const> args);

// Value of an environment variable, or null; getenv outside tests.
using Environment = std::function<const char*(const char* name)>;

// Applies file, environment and command line to the schema, in that order; whether the required
// items are there is Schema::check_required's. Without --config, AKV_CONFIG names the file.
// Numbers, booleans and arrays of the JSON object may be given as such or as text; unknown and
// repeated keys are errors.
Status apply_configuration(Schema& schema, const CommandLine& command_line,
                           const Environment& environment);

// AKV_ and the name in upper case with underscores: "log-level" -> "AKV_LOG_LEVEL".
std::string environment_name(std::string_view item);

}  // namespace akv
