#include "common/app/application.h"
#include "prefill_node/daemon.h"

int main(int argc, char** argv) { return akv::run_application<akv::prefill::Daemon>(argc, argv); }
