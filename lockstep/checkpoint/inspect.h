// What `lockstep checkpoint list` and `verify` say of a directory.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep::checkpoint {

// {directory, checkpoints: [{step, epoch, world_size, bytes, job, written, state}]}, newest first; state is "complete"
// (all files are there and have their sizes), or what is wrong.
absl::StatusOr<Json> ListReport(const Store& store);
// {directory, valid, checkpoints: [{step, epoch, valid, why}]}: reads everything. valid: there is one, and none is
// damaged. An error if one can't be read, which says nothing of it.
absl::StatusOr<Json> VerifyReport(const Store& store);

}  // namespace lockstep::checkpoint
