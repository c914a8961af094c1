// Opens whatever checkpoint lies at a path: a file of torch.save; a folder of torch.distributed.checkpoint, which
// Megatron's torch_dist format is, too; a folder of Megatron's older format (iter_NNNNNNN/mp_rank_NN/*.pt); a
// checkpoint of Lockstep, or the newest in its directory. And what `lockstep checkpoint inspect` says of it.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

// kNotFound: there is none of these kinds.
absl::StatusOr<Saved> OpenSaved(checkpoint::Disk& disk, const std::string& path);

// {kind, folder, step, world_size, bytes, whole, problems, passed_over, tensors: [{name, dtype, shape, bytes, shards:
// [{offsets, sizes, strides, file, at, rank}]}], values: [{name, value}]}; offsets and strides count elements, `at`
// bytes of the file. whole: no tensor lacks a part.
Json DetailedReport(const Saved& saved);
// The same for people: tensors as lines, with the number of their shards and the ranks that wrote them.
Json ShortReport(const Saved& saved);

}  // namespace lockstep::reshape
