// A pipelined job's rows once more, as the files that PyTorch's profiler would have written, one per rank: each op a
// kernel of the duration that the row has, launched in the order of its host's program. Sends and receives are kernels
// of their own, told as torch tells them.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/synth/job.h"
#include "lockstep/synth/kineto_file.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::synth {

// Writes rank-N.json.gz of each rank into the directory. kInvalidArgument: tensor parallelism, of which rows tell
// nothing.
absl::Status WritePipelineFiles(const std::string& directory, const JobShape& shape, const trace::StragglerRows& rows,
                                KinetoEra era);

}  // namespace lockstep::synth
