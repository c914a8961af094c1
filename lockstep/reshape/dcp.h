// Folders of torch.distributed.checkpoint (of torch 1.13, torch.distributed._shard.checkpoint), without torch: a
// pickle,
// `.metadata`, says which boxes of which tensor lie where in the files `__RANK_NUMBER.distcp`; each box is an archive
// of torch.save of its own. `.metadata` is written last and renamed: without it there is no checkpoint.
//
//   LS_ASSIGN_OR_RETURN(const Saved saved, ReadDcp(disk, "/data/step_100"));
#pragma once

#include "lockstep/checkpoint/disk.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

inline constexpr char kDcpMetadata[] = ".metadata";

// Reads where everything lies, and no tensor. Values that are not plain are passed over with a sentence; a tensor whose
// file, sizes or pickle are wrong is an error that names it.
absl::StatusOr<Saved> ReadDcp(checkpoint::Disk& disk, const std::string& folder);

}  // namespace lockstep::reshape
