// Writes a SmallModel as a GGUF file, for tests of daemons as processes.
// usage: write_small_model FILE [LAYERS]
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/model/small_model.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: write_small_model FILE [LAYERS]\n");
    return 2;
  }
  akv::model::SmallModel model;
  if (argc == 3) model.layers = static_cast<uint32_t>(std::atoi(argv[2]));
  const auto bytes = model.bytes();
  std::ofstream out(argv[1], std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  out.close();
  return out.good() ? 0 : 1;
}
