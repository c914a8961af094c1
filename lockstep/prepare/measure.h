// How fast the images of a directory become tensors on this machine: one thread, files in the page cache, several
// passes over the same images with the same crops. The passes of what is compared alternate, so that both see the same
// machine.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/prepare/preparer.h"

namespace lockstep::prepare {

struct MeasureOptions {
  std::string directory;
  uint64_t images = 1024;  // at most so many of the directory, evenly spread
  int passes = 7;
  Recipe recipe;
  Limits limits;
  uint64_t seed = 1;
};
// "images_per_s_per_core": of the files as they are, by CPU time of the thread, median of the passes.
absl::StatusOr<Json> MeasureFolder(const MeasureOptions& options);

}  // namespace lockstep::prepare
