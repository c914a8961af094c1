// Lockstep's own checkpoints (docs/formats/checkpoint.md), seen as any other: which rank holds which box of which
// tensor. Where a tensor is a part of a larger one, its place says so; where every rank has one of the same name and
// shape without a place, they are given as copies, which they need not be: whoever reads compares them.
#pragma once

#include "lockstep/checkpoint/store.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

// Reads manifest and heads, and no tensor, of the checkpoint in this folder, whatever that is called.
absl::StatusOr<Saved> ReadOwn(checkpoint::Disk& disk, const std::string& folder);

}  // namespace lockstep::reshape
