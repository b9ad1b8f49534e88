// The bucket bounds of the project's histograms, in one place so that dashboards can rely on them.
#include "common/metrics/metrics.h"

namespace akv {

std::vector<double> ttft_buckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

std::vector<double> inter_token_buckets() {
  return {.002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .05, .075,
          .1,   .15,  .2,   .3,   .4,  .5,   .75, 1,    2.5, 5,   10,  20};
}

std::vector<double> request_buckets() {
  return {.1, .2, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960};
}

std::vector<double> stage_buckets() {
  std::vector<double> bounds;
  for (double bound = 0.001; bound < 600; bound *= 2) bounds.push_back(bound);
  return bounds;
}

std::vector<double> ratio_buckets() { return {1, 2, 4, 6, 8, 10, 12, 16, 18, 20, 24, 32, 40, 64}; }

std::vector<double> batch_buckets() { return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}; }

}  // namespace akv
