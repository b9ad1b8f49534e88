#include "common/app/application.h"
#include "decode_node/daemon.h"
#include "decode_node/plan_report.h"

int main(int argc, char** argv) {
  const std::span<const char* const> args(argv + 1, argv + argc);
  if (akv::decode::wants_plan(args)) return akv::decode::print_plan(args);
  return akv::run_application<akv::decode::Daemon>(argc, argv);
}
