#include "lockstep/control/roster.h"

#include <algorithm>
#include <cstdlib>

namespace lockstep::control {
namespace {

std::string NodesText(int least, int most) {
  return least == most ? std::to_string(most) : fmt::format("{}:{}", least, most);
}
std::string NodesText(const Join& join) { return NodesText(join.least_nodes, join.most_nodes); }

bool SaysNodes(const Join& join) { return join.most_nodes > 0; }

// Both were started for one job, as far as they say.
absl::Status CheckJob(const Join& join, const Join& other) {
  if (join.rdzv_id != other.rdzv_id)
    return InvalidArgument("node {} has --rdzv-id \"{}\", node {} has \"{}\": jobs that meet at one address are one",
                           join.name, join.rdzv_id, other.name, other.rdzv_id);
  if (join.keeps_on_disk != other.keeps_on_disk)
    return InvalidArgument("node {} has --checkpoint-dir, node {} has not; give all the same",
                           join.keeps_on_disk ? join.name : other.name, join.keeps_on_disk ? other.name : join.name);
  return absl::OkStatus();
}

}  // namespace

Roster::Roster(std::string run, const std::vector<NodeSpec>& nodes, Expected expected)
    : run_(std::move(run)), expected_(expected), nodes_(nodes) {}

int Roster::LeastNodes() const {
  return expected_.most_nodes > 0 || waiting_.empty() ? expected_.least_nodes : waiting_.front().least_nodes;
}
int Roster::MostNodes() const {
  return expected_.most_nodes > 0 || waiting_.empty() ? expected_.most_nodes : waiting_.front().most_nodes;
}

absl::Status Roster::CheckRun(const Join& join) const {
  if (join.run.empty() || join.run == run_) return absl::OkStatus();
  return FailedPrecondition("node {} belongs to run {}, this coordinator leads run {}", join.name, join.run, run_);
}

absl::Status Roster::Check(const Join& join) const {
  LS_RETURN_IF_ERROR(CheckRun(join));
  if (std::abs(join.version - kLinkVersion) > 1) {
    return FailedPrecondition(
        "node {} speaks version {} of the link, this coordinator {}: at most one apart is understood; "
        "install the same release of Lockstep on both",
        join.name, join.version, kLinkVersion);
  }
  if (const auto refused = refused_.find(join.token); refused != refused_.end())
    return FailedPrecondition("node {} is out of this job: {}", join.name, refused->second);
  if (PlaceOf(join.token).node != kStandby) return absl::OkStatus();
  if (join.ranks < 1) return InvalidArgument("node {} has {} ranks", join.name, join.ranks);
  if (!nodes_.empty()) return CheckStandby(join);
  if (expected_.most_nodes == 0 && !SaysNodes(join))
    return InvalidArgument(
        "node {} leaves the number of nodes to the coordinator, which was given none: say --nnodes there", join.name);
  if (expected_.most_nodes > 0 && SaysNodes(join) &&
      (join.least_nodes != expected_.least_nodes || join.most_nodes != expected_.most_nodes)) {
    return InvalidArgument("node {} says --nnodes {}, the coordinator says --nnodes {}; give both the same", join.name,
                           NodesText(join), NodesText(expected_.least_nodes, expected_.most_nodes));
  }
  for (const Join& other : waiting_)
    if (other.token != join.token) LS_RETURN_IF_ERROR(CheckAgainst(join, other));
  const int most = expected_.most_nodes > 0 ? expected_.most_nodes : join.most_nodes;
  if (join.node_rank >= most)
    return InvalidArgument("node {} has --node-rank {}, but --nnodes is {}", join.name, join.node_rank,
                           SaysNodes(join) ? NodesText(join) : NodesText(expected_.least_nodes, expected_.most_nodes));
  return absl::OkStatus();
}

absl::Status Roster::CheckAgainst(const Join& join, const Join& other) const {
  const bool both_say = SaysNodes(join) && SaysNodes(other);
  if (both_say && (other.least_nodes != join.least_nodes || other.most_nodes != join.most_nodes)) {
    return InvalidArgument("node {} says --nnodes {}, node {} says --nnodes {}; give all the same", join.name,
                           NodesText(join), other.name, NodesText(other));
  }
  LS_RETURN_IF_ERROR(CheckJob(join, other));
  if (join.node_rank >= 0 && other.node_rank == join.node_rank)
    return InvalidArgument("two agents have --node-rank {}: node {} and node {}", join.node_rank, other.name,
                           join.name);
  if (other.name == join.name)
    return InvalidArgument("two nodes have the name {}; tell them apart with --node-name", join.name);
  return absl::OkStatus();
}

// After the job began: one that could take the place of any node, while there is room for one more.
absl::Status Roster::CheckStandby(const Join& join) const {
  if (member_) LS_RETURN_IF_ERROR(CheckJob(join, *member_));
  int others = 0;
  for (const Join& standby : waiting_) {
    if (standby.token == join.token) continue;
    if (is_fit_({standby.name, standby.ranks, standby.token})) ++others;
    if (standby.name == join.name)
      return InvalidArgument("two nodes have the name {}; tell them apart with --node-name", join.name);
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].name == join.name && attends_(static_cast<int>(i)))
      return InvalidArgument("two nodes have the name {}; tell them apart with --node-name", join.name);
  }
  const auto fits = [&](const NodeSpec& node) { return node.ranks == join.ranks; };
  const int room = std::max(0, expected_.most_nodes - static_cast<int>(nodes_.size()));
  if (others >= expected_.standbys + asked_for_ + room) {
    const std::string standbys = expected_.standbys > 0 ? fmt::format(" and {} standbys", expected_.standbys) : "";
    return FailedPrecondition("node {} came after the job had begun with {} nodes{}", join.name, nodes_.size(),
                              standbys);
  }
  if (std::none_of(nodes_.begin(), nodes_.end(), fits))
    return InvalidArgument("node {} has {} ranks, and no node of this job has as many: it could take no place",
                           join.name, join.ranks);
  return absl::OkStatus();
}

absl::Status Roster::Admit(const Join& join, Nanos now) {
  LS_RETURN_IF_ERROR(Check(join));
  if (PlaceOf(join.token).node != kStandby) {
    member_ = join;
    return absl::OkStatus();
  }
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
  const bool last_call_over = now - newest_ >= ToNanos(kLastCall);
  if (!HasEnough() || (static_cast<int>(waiting_.size()) < MostNodes() && !last_call_over)) return false;
  SeatAll();
  return true;
}

bool Roster::HasEnough() const { return !waiting_.empty() && static_cast<int>(waiting_.size()) >= LeastNodes(); }

// Those that asked for a rank stand in its order; the others follow as they came. Without gaps that is the rank asked
// for; with MIN:MAX there may be gaps, and ranks close up.
void Roster::SeatAll() {
  expected_.least_nodes = LeastNodes();
  expected_.most_nodes = MostNodes();
  std::vector<const Join*> seats(static_cast<size_t>(MostNodes()), nullptr);
  for (const Join& join : waiting_)
    if (join.node_rank >= 0) seats[static_cast<size_t>(join.node_rank)] = &join;
  for (const Join& join : waiting_)
    if (join.node_rank < 0) *std::find(seats.begin(), seats.end(), nullptr) = &join;
  for (const Join* join : seats) {
    if (join != nullptr && nodes_.empty()) job_ = join->job;
    if (join != nullptr) nodes_.push_back({join->name, join->ranks, join->token});
  }
  for (const Join& join : waiting_) {
    first_epoch_ = std::max(first_epoch_, join.first_epoch);
    if (layout_.empty()) layout_ = join.layout;
    if (entry_.empty()) entry_ = join.entry;
  }
  member_ = waiting_.front();
  waiting_.clear();
}

void Roster::Seat(int node, const NodeSpec& standby, const std::string& why) {
  NodeSpec& place = nodes_[static_cast<size_t>(node)];
  Refuse(place.token, why);
  Leave(standby.token);
  place = standby;
}

void Roster::Resize(const std::vector<NodeSpec>& nodes) {
  nodes_ = nodes;
  for (const NodeSpec& node : nodes_) Leave(node.token);
}

Place Roster::PlaceOf(const std::string& token) const {
  Place place{kStandby, 0, 0, static_cast<int>(nodes_.size())};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].token == token) {
      place.node = static_cast<int>(i);
      place.first_rank = place.world_size;
    }
    place.world_size += nodes_[i].ranks;
  }
  return place;
}

std::string Roster::Progress() const {
  std::string names;
  for (const Join& join : waiting_) names += (names.empty() ? "" : ", ") + join.name;
  const std::string wanted = MostNodes() == 0 ? "?" : NodesText(LeastNodes(), MostNodes());
  return fmt::format("{} of {} nodes are here: {}", waiting_.size(), wanted, names);
}

}  // namespace lockstep::control
