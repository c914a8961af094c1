#include "lockstep/control/roster.h"

#include <algorithm>
#include <cstdlib>

namespace lockstep::control {
namespace {

std::string NodesText(const Join& join) {
  return join.least_nodes == join.most_nodes ? std::to_string(join.most_nodes)
                                             : fmt::format("{}:{}", join.least_nodes, join.most_nodes);
}

}  // namespace

Roster::Roster(std::string run, const std::vector<NodeSpec>& nodes) : run_(std::move(run)), nodes_(nodes) {}

absl::Status Roster::Check(const Join& join) const {
  if (std::abs(join.version - kLinkVersion) > 1) {
    return FailedPrecondition(
        "node {} speaks version {} of the link, this coordinator {}: at most one apart is understood; "
        "install the same release of Lockstep on both",
        join.name, join.version, kLinkVersion);
  }
  if (!join.run.empty() && join.run != run_)
    return FailedPrecondition("node {} belongs to run {}, this coordinator leads run {}", join.name, join.run, run_);
  if (!nodes_.empty()) {
    if (PlaceOf(join.token)) return absl::OkStatus();
    return FailedPrecondition("node {} came after the job had begun with {} nodes", join.name, nodes_.size());
  }
  if (join.ranks < 1) return InvalidArgument("node {} has {} ranks", join.name, join.ranks);
  for (const Join& other : waiting_) {
    if (other.token == join.token) continue;
    if (other.least_nodes != join.least_nodes || other.most_nodes != join.most_nodes) {
      return InvalidArgument("node {} says --nnodes {}, node {} says --nnodes {}; give all the same", join.name,
                             NodesText(join), other.name, NodesText(other));
    }
    if (join.rdzv_id != other.rdzv_id)
      return InvalidArgument("node {} has --rdzv-id \"{}\", node {} has \"{}\": jobs that meet at one address are one",
                             join.name, join.rdzv_id, other.name, other.rdzv_id);
    if (join.keeps_on_disk != other.keeps_on_disk)
      return InvalidArgument("node {} has --checkpoint-dir, node {} has not; give all the same",
                             join.keeps_on_disk ? join.name : other.name, join.keeps_on_disk ? other.name : join.name);
    if (join.node_rank >= 0 && other.node_rank == join.node_rank)
      return InvalidArgument("two agents have --node-rank {}: node {} and node {}", join.node_rank, other.name,
                             join.name);
    if (other.name == join.name)
      return InvalidArgument("two nodes have the name {}; tell them apart with --node-name", join.name);
  }
  if (join.node_rank >= join.most_nodes)
    return InvalidArgument("node {} has --node-rank {}, but --nnodes is {}", join.name, join.node_rank,
                           NodesText(join));
  return absl::OkStatus();
}

absl::Status Roster::Admit(const Join& join, Nanos now) {
  LS_RETURN_IF_ERROR(Check(join));
  if (!nodes_.empty()) return absl::OkStatus();
  Leave(join.token);
  waiting_.push_back(join);
  newest_ = now;
  return absl::OkStatus();
}

void Roster::Leave(const std::string& token) {
  std::erase_if(waiting_, [&](const Join& join) { return join.token == token; });
}

bool Roster::IsComplete(Nanos now) {
  if (!nodes_.empty()) return true;
  if (waiting_.empty()) return false;
  const auto count = static_cast<int>(waiting_.size());
  const Join& any = waiting_.front();
  const bool last_call_over = now - newest_ >= ToNanos(kLastCall);
  if (count < any.most_nodes && !(count >= any.least_nodes && last_call_over)) return false;
  Seat();
  return true;
}

// Those that asked for a rank stand in its order; the others follow as they came. Without gaps that is the rank asked
// for; with MIN:MAX there may be gaps, and ranks close up.
void Roster::Seat() {
  std::vector<const Join*> seats(static_cast<size_t>(waiting_.front().most_nodes), nullptr);
  for (const Join& join : waiting_)
    if (join.node_rank >= 0) seats[static_cast<size_t>(join.node_rank)] = &join;
  for (const Join& join : waiting_)
    if (join.node_rank < 0) *std::find(seats.begin(), seats.end(), nullptr) = &join;
  for (const Join* join : seats)
    if (join != nullptr) nodes_.push_back({join->name, join->ranks, join->token});
}

std::optional<Place> Roster::PlaceOf(const std::string& token) const {
  std::optional<Place> place;
  int ranks = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].token == token) place = Place{static_cast<int>(i), ranks, 0, static_cast<int>(nodes_.size())};
    ranks += nodes_[i].ranks;
  }
  if (place) place->world_size = ranks;
  return place;
}

EpochId Roster::first_epoch() const {
  uint64_t first = 1;
  for (const Join& join : waiting_) first = std::max(first, join.first_epoch);
  return EpochId(first);
}

std::string Roster::Progress() const {
  std::string names;
  for (const Join& join : waiting_) names += (names.empty() ? "" : ", ") + join.name;
  const std::string wanted = waiting_.empty() ? "?" : NodesText(waiting_.front());
  return fmt::format("{} of {} nodes are here: {}", waiting_.size(), wanted, names);
}

}  // namespace lockstep::control
