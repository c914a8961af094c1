// The JSON status of NCCL's RAS (`ncclras`, `SET FORMAT json`, from NCCL 2.28.7 on): how many collectives of each
// function every rank has launched, and which ranks do not answer. docs/formats/ras.md has what is taken from it.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

bool IsRas(const Json& document);
// Ranks of the job are those of the largest communicator; in others they are known by host and process. A rank that
// launched more than another is taken to be in its newest collective. kInvalidArgument: no communicators.
absl::StatusOr<CommLog> ReadRas(const Json& document);

}  // namespace lockstep::trace
