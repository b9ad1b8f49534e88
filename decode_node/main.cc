#include "common/app/application.h"
#include "decode_node/daemon.h"

int main(int argc, char** argv) { return akv::run_application<akv::decode::Daemon>(argc, argv); }
