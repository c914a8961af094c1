// The status of NCCL's RAS as text (`ncclras`, or the answer to STATUS and VERBOSE STATUS, from NCCL 2.24 on): which
// ranks differ from the others in how much they have launched, and which tell nothing. docs/formats/ras.md has what is
// taken from it.
//
// The text names ranks only where they differ. Who is not named and can't be told from the others is not known:
// nothing is put in its place, but counted, and told of in `blind_spot`.
//
//   if (IsRasText(text)) LS_ASSIGN_OR_RETURN(const CommLog log, ReadRasText(text));
#pragma once

#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// Of the beginning of a file; a few KiB are enough.
bool IsRasText(std::string_view begin);
// Ranks of the job are those of the largest communicator, the first of them; in others they are known by host, process
// and GPU, where the text has those for both. kInvalidArgument: no table of communicators.
absl::StatusOr<CommLog> ReadRasText(std::string_view text);

}  // namespace lockstep::trace
