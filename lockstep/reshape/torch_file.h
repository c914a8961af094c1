// Files of torch.save, without torch: a zip of one pickle, in which tensors are only named, and of their bytes. A
// tensor's name is the way to it: keys of dicts and places in lists, joined by dots. The format of before torch 1.6,
// which has no zip, is refused.
//
//   LS_ASSIGN_OR_RETURN(const Slice file, WholeFile(disk, "/data/model.pt"));
//   LS_ASSIGN_OR_RETURN(const TorchFile saved, ReadTorchFile(file, "model.pt", ""));
#pragma once

#include <string>
#include <vector>

#include "lockstep/reshape/saved.h"
#include "lockstep/reshape/slice.h"

namespace lockstep::reshape {

struct TorchFile {
  std::vector<SavedTensor> tensors;  // one shard each
  std::vector<SavedValue> values;
  bool has_sums = true;                  // of pickle and tensors, to compare with
  std::vector<std::string> passed_over;  // a sentence each: what is neither tensor nor plain
};

// `slice` is the file, or the part of one that torch.save wrote into; `file` its name in shards; `name` what the names
// begin with. Reads no tensor. kInvalidArgument: the pickle is whole, and has what no checkpoint needs; or it is of
// before torch 1.6. kDataLoss: sizes or sums are wrong.
absl::StatusOr<TorchFile> ReadTorchFile(const Slice& slice, const std::string& file, const std::string& name);

// The sentence for one without sums.
std::string SaysNoSums(std::string_view path);

}  // namespace lockstep::reshape
