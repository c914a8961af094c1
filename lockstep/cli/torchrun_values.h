// What may stand behind torchrun's options, read from text. `flag` is named in the error.
//
//   LS_ASSIGN_OR_RETURN(const std::vector<int> masks, Masks("--tee", "0:1,1:2", 4, notices));   // 1 2 0 0
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::cli {

// --nproc-per-node: a number, or auto, cpu or gpu for one per device. `devices`: where their files are.
absl::StatusOr<int> RankCount(const std::string& text, const std::string& devices = "/dev");

// The store listens here, so what the workers call it by must be an address of this machine.
absl::Status CheckOwnAddress(const std::string& flag, const std::string& host);
// "3" for all ranks, "0:1,1:2" for some of them; 0 for the others. 1 is stdout, 2 is stderr.
absl::StatusOr<std::vector<int>> Masks(const std::string& flag, const std::string& text, int ranks,
                                       std::vector<std::string>& notices);
// A line if ranks are named that this node has not; torchrun ignores them, so that one command line serves all nodes.
void NoteSurplus(const std::string& flag, const std::string& text, const std::set<int>& named, int ranks,
                 std::vector<std::string>& notices);

// "SIGTERM" -> 15. Only signals that a process can take.
absl::StatusOr<int> SignalNumber(const std::string& name);

}  // namespace lockstep::cli
