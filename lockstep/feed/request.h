// What a rank asks for when it joins: one JSON packet (docs/formats/feed.md), checked here as far as it can be without
// the data set.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/prepare/recipe.h"

namespace lockstep::feed {

inline constexpr int kProtocolVersion = 1;

// Which items of the data set; all, unless something says less. What says something must all hold.
struct Subset {
  std::optional<uint64_t> begin{}, end{};         // items [begin, end)
  std::vector<std::string> names{};               // of labels,
  std::vector<uint64_t> labels{};                 // and their numbers: either is enough
  std::optional<std::vector<uint64_t>> listed{};  // comes beside the packet
  std::optional<uint64_t> mask{};                 // those are of a mask of so many items
};

// The process that a rank is.
struct Whose {
  std::string host;  // "": of this machine
  pid_t pid = 0;
  std::string ToString() const;  // "process 7 of node3"
};

struct JoinRequest {
  std::string dataset, job;
  Subset where;
  std::optional<uint64_t> listed;  // so many ids come beside the packet
  prepare::Recipe recipe;
  uint32_t batch = 0, slots = 0;
  uint64_t seed = 0;
  uint32_t rank = 0, world = 1;
  bool drop_last = false;
  bool alone = false;  // begin at the beginning, not beside jobs that are under way
  bool apart = false;  // some of its ranks may be at other services, which must come to the same: as if alone
  std::string state;   // where it goes on (sampling/stream.h); "": it has not begun
  Whose from;          // as a relay says; no pid: nobody has said it
};

// An error is one sentence for the user of the loader.
absl::StatusOr<JoinRequest> ParseJoin(const Json& packet);
// What all ranks of a job must ask for alike.
std::string TermsOf(const JoinRequest& request);

}  // namespace lockstep::feed
