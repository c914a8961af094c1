#include "lockstep/trace/chakra_job.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "lockstep/graph/replay.h"
#include "lockstep/trace/meetings.h"

namespace lockstep::trace {
namespace {

class Builder {
 public:
  explicit Builder(std::vector<ChakraRank> ranks) : ranks_(std::move(ranks)) {}

  absl::StatusOr<TracedJob> Build() {
    std::sort(ranks_.begin(), ranks_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    for (size_t i = 1; i < ranks_.size(); ++i)
      if (ranks_[i].rank == ranks_[i - 1].rank)
        return InvalidArgument("{} and {} are both of rank {}", ranks_[i - 1].path, ranks_[i].path, ranks_[i].rank);
    FindRoles();
    for (size_t role = 0; role < roles_.size(); ++role) AddRole(role);
    LS_RETURN_IF_ERROR(AddMeetings());
    const auto lanes = static_cast<uint32_t>(ranks_.size());
    LS_ASSIGN_OR_RETURN(graph::OpGraphBuilder::Built built, builder_.Build({0, lanes}, [&](uint32_t op) {
      const Role& role = roles_[role_of_op_[op]];
      const ChakraNode& node = ranks_[role.rank].nodes[op - role.first_op];
      return fmt::format("\"{}\" (node {} of rank {})", node.name, node.id, ranks_[role.rank].rank);
    }));
    job_.graph = std::move(built.graph);
    number_ = std::move(built.number);
    Fill();
    Describe();
    return std::move(job_);
  }

 private:
  // The nodes and edges of one or more ranks.
  struct Role {
    size_t rank;  // the first that has it: index into ranks_
    uint32_t first_op;
  };
  using Form = std::vector<uint64_t>;

  // What ranks of a role have in common: kinds, and edges by place instead of id.
  Form FormOf(const ChakraRank& rank) {
    std::unordered_map<uint64_t, uint64_t> place;
    for (const ChakraNode& node : rank.nodes) place.emplace(node.id, place.size());
    Form form;
    for (const ChakraNode& node : rank.nodes) {
      form.push_back(static_cast<uint64_t>(KindOf(node)));
      form.push_back(node.waits_for.size());
      for (const uint64_t id : node.waits_for) {
        const auto found = place.find(id);
        form.push_back(found == place.end() ? place.size() : found->second);
      }
    }
    return form;
  }

  int KindOf(const ChakraNode& node) {
    const std::string& name = node.kind.empty() ? kCompute : node.kind;
    const auto [found, is_new] = kinds_.emplace(name, kinds_.size());
    if (is_new) job_.kinds.push_back(name);
    return static_cast<int>(found->second);
  }

  void FindRoles() {
    std::map<Form, size_t> forms;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto [found, is_new] = forms.emplace(FormOf(ranks_[rank]), roles_.size());
      if (is_new) {
        const auto first_op = static_cast<uint32_t>(role_of_op_.size());
        role_of_op_.insert(role_of_op_.end(), ranks_[rank].nodes.size(), static_cast<uint32_t>(roles_.size()));
        roles_.push_back({rank, first_op});
      }
      role_of_.push_back(found->second);
    }
  }

  void AddRole(size_t number) {
    const Role& role = roles_[number];
    const std::vector<ChakraNode>& nodes = ranks_[role.rank].nodes;
    std::unordered_map<uint64_t, uint32_t> op_of;
    for (const ChakraNode& node : nodes) op_of.emplace(node.id, builder_.AddOp());
    std::vector<bool> is_waited_for(nodes.size());
    uint64_t missing = 0;
    for (uint32_t i = 0; i < nodes.size(); ++i)
      for (const uint64_t id : nodes[i].waits_for) {
        const auto before = op_of.find(id);
        if (before == op_of.end()) {
          ++missing;
          continue;
        }
        builder_.AddDependency(before->second, role.first_op + i);
        is_waited_for[before->second - role.first_op] = true;
      }
    for (uint32_t i = 0; i < nodes.size(); ++i)
      if (!is_waited_for[i]) builder_.AddFinal(role.first_op + i);
    Count(job_.counters, "missing_dependencies", missing);
  }

  absl::Status AddMeetings() {
    Meetings meetings(role_of_op_, {0, static_cast<uint32_t>(ranks_.size())});
    std::map<std::pair<std::string, size_t>, std::vector<Meetings::Member>> members;  // by whom, and the how manieth
    std::vector<uint32_t> communications;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const Role& role = roles_[role_of_[rank]];
      std::map<std::string, size_t> count;
      for (uint32_t i = 0; i < ranks_[rank].nodes.size(); ++i) {
        const ChakraNode& node = ranks_[rank].nodes[i];
        if (node.kind.empty()) continue;
        members[{node.meets, count[node.meets]++}].push_back({rank, role.first_op + i});
        if (role.rank == rank) communications.push_back(role.first_op + i);
      }
    }
    for (auto& [where, met] : members) {
      const ChakraNode& first = NodeOf(met.front());
      for (const Meetings::Member& member : met)
        if (const ChakraNode& node = NodeOf(member); node.kind != first.kind)
          return InvalidArgument("{}: node {} is {} where {} has {} ({}, number {}): traces of different jobs?",
                                 ranks_[member.lane].path, node.id, node.kind, ranks_[met.front().lane].path,
                                 first.kind, where.first, where.second);
      double transfer = first.duration_s;
      for (const Meetings::Member& member : met) transfer = std::min(transfer, NodeOf(member).duration_s);
      for (const Meetings::Member& member : met) transfers_[{member.op, member.lane}] = transfer;
      meetings.Add(std::move(met), true);
    }
    const uint64_t single = meetings.AddGroups(communications, builder_);
    if (ranks_.size() > 1) Count(job_.counters, "unmatched_collectives", single);
    return absl::OkStatus();
  }
  const ChakraNode& NodeOf(const Meetings::Member& member) const {
    return ranks_[member.lane].nodes[member.op - roles_[role_of_[member.lane]].first_op];
  }

  void Fill() {
    const size_t lanes = ranks_.size(), cells = role_of_op_.size() * lanes;
    job_.durations.assign(cells, 0.0F);
    job_.transfers.assign(cells, 0.0F);
    job_.delays.assign(cells, 0.0F);
    if (roles_.size() > 1) job_.graph.absent.assign(cells, 1);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const uint32_t first_op = roles_[role_of_[lane]].first_op;
      for (uint32_t i = 0; i < ranks_[lane].nodes.size(); ++i) {
        const size_t cell = job_.graph.Cell(number_[first_op + i], lane);
        const double duration = ranks_[lane].nodes[i].duration_s;
        const auto transfer = transfers_.find({first_op + i, lane});
        job_.durations[cell] = static_cast<float>(duration);
        job_.transfers[cell] = static_cast<float>(transfer == transfers_.end() ? duration : transfer->second);
        if (!job_.graph.absent.empty()) job_.graph.absent[cell] = 0;
      }
    }
    const std::vector<double> ideal(role_of_op_.size());
    const graph::Replay replay(job_.graph, {job_.transfers, {}, ideal});
    graph::Replay::Scratch scratch;
    const graph::Scenario measured{graph::Selection(role_of_op_.size(), graph::Selection::kAll),
                                   graph::Selection(role_of_op_.size(), graph::Selection::kNone)};
    std::vector<double> ends(cells);
    replay.Ends(measured, scratch, ends);
    job_.step_times.push_back(static_cast<float>(*std::max_element(ends.begin(), ends.end())));
    job_.starts.reserve(cells);
    for (size_t cell = 0; cell < cells; ++cell)
      job_.starts.push_back(static_cast<float>(ends[cell] - static_cast<double>(job_.transfers[cell])));
  }

  void Describe() {
    job_.ops.resize(role_of_op_.size());
    job_.ideal_class.resize(role_of_op_.size());
    for (uint32_t op = 0; op < role_of_op_.size(); ++op) {
      const Role& role = roles_[role_of_op_[op]];
      const ChakraNode& node = ranks_[role.rank].nodes[op - role.first_op];
      const auto place = static_cast<int>(op - role.first_op);
      job_.ops[number_[op]] = node.kind.empty()
                                  ? JobOp{OpType::kSegment, 0, place, static_cast<int>(op), 0, -1, KindOf(node)}
                                  : JobOp{OpType::kCollective, 0, place, -1, -1, -1, KindOf(node)};
      job_.ideal_class[number_[op]] = op;  // each is held against itself on the other ranks
    }
    job_.steps = {0};
    job_.dp = static_cast<int>(ranks_.size());
    job_.world_size = ranks_.back().rank + 1;
    for (const ChakraRank& rank : ranks_) {
      job_.lanes.push_back({0, static_cast<int>(job_.lanes.size())});
      job_.ranks.push_back({rank.rank});
    }
    Count(job_.counters, kAbsentRanks, static_cast<uint64_t>(job_.world_size) - ranks_.size());
    std::vector<size_t> ranks(roles_.size());
    for (const size_t role : role_of_) ++ranks[role];
    if (ranks_.size() > 1)
      Count(job_.counters, kRanksWithoutPeers, static_cast<uint64_t>(std::ranges::count(ranks, size_t{1})));
  }

  inline static const std::string kCompute = "compute";

  std::vector<ChakraRank> ranks_;
  TracedJob job_;
  std::map<std::string, size_t> kinds_;
  std::vector<Role> roles_;
  std::vector<size_t> role_of_;  // [rank]
  std::vector<uint32_t> role_of_op_;
  graph::OpGraphBuilder builder_;
  std::map<std::pair<uint32_t, uint32_t>, double> transfers_;  // (op, lane), s
  std::vector<uint32_t> number_;
};

}  // namespace

absl::StatusOr<TracedJob> BuildChakraJob(std::vector<ChakraRank> ranks) { return Builder(std::move(ranks)).Build(); }

}  // namespace lockstep::trace
