// Many ranks as few rows: the worst ranks one by one, the others folded by group. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/cluster/layout.h"

namespace lockstep::top {

struct Group {
  std::string name;  // "node worker-3", "pp 1"
  std::vector<int> ranks;
};
// A partition of all ranks, and what it goes by ("node", "tp").
struct Folding {
  std::string name;
  std::vector<Group> groups;
};

// Of status documents of one rank each, in order: by the node that each names. All on one that needs no name: one
// group.
Folding ByNode(const Json& ranks);
// A rank stays with those that share its place in `dimension`: all of pipeline stage 2 are one group.
Folding ByPlace(const cluster::Layout& layout, cluster::Dimension dimension);

// The numbers of the ranks in `ranks` (status documents of one rank each), the worst first: those that do not run, then
// those that are behind, then the slow ones.
std::vector<int> WorstFirst(const Json& ranks);

// One row: a single rank, or several.
struct Row {
  std::vector<int> ranks;
  std::string name;  // of the group; empty for a single rank
};
// At most `room` rows (at least 1) that hold all of `ranks` once.
std::vector<Row> Fold(const Json& ranks, const Folding& folding, size_t room);

}  // namespace lockstep::top
