// For tests: a log of communication, rank by rank, and who is named in what was found.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/detect/comm_hang.h"

namespace lockstep::detect {

// Ranks of a job and what they launched.
class Job {
 public:
  Job() { log_.shapes = {"", "[8] Float"}; }
  uint32_t AddGroup(std::vector<int> ranks, const std::string& description = "") {
    log_.communicators.push_back({std::to_string(log_.communicators.size()), description, std::move(ranks)});
    return static_cast<uint32_t>(log_.communicators.size() - 1);
  }
  // `ended`: the numbers up to this one have ended, those from there to `launched` have not.
  void Collectives(uint32_t group, int rank, int64_t ended, int64_t launched, const std::string& name = "all_reduce") {
    Report(rank);
    log_.counts.push_back({group, rank, launched, ended});
    for (int64_t i = ended; i <= launched; ++i)
      Add(group, rank, i, name, i <= ended ? trace::OpState::kCompleted : trace::OpState::kScheduled);
  }
  void Add(uint32_t group, int rank, int64_t sequence, const std::string& name, trace::OpState state) {
    Report(rank);
    const auto known = std::find(log_.functions.begin(), log_.functions.end(), name);
    const auto function = static_cast<uint32_t>(known - log_.functions.begin());
    if (known == log_.functions.end()) log_.functions.push_back(name);
    trace::CommOp op;
    op.communicator = group;
    op.rank = rank;
    op.sequence = sequence;
    op.order = order_++;
    op.function = function;
    op.shape = 1;
    op.created_ns = 1'000 + op.order;
    op.state = state;
    log_.ops.push_back(op);
  }
  // The rank's next of the group.
  void Launch(uint32_t group, int rank, const std::string& name, bool ended) {
    Add(group, rank, ++numbers_[{group, rank}], name, ended ? trace::OpState::kCompleted : trace::OpState::kScheduled);
  }
  void Transfer(uint32_t group, int rank, trace::Direction direction, int peer,
                trace::OpState state = trace::OpState::kScheduled) {
    Add(group, rank, 0, direction == trace::Direction::kSend ? "send" : "recv", state);
    log_.ops.back().direction = direction;
    log_.ops.back().peer = peer;
  }
  // Of the op that was added last.
  void Shape(const std::string& shape) {
    log_.ops.back().shape = static_cast<uint32_t>(log_.shapes.size());
    log_.shapes.push_back(shape);
  }
  // Transfers that run together: each with its direction and peer.
  void Batch(uint32_t group, int rank, const std::vector<std::pair<trace::Direction, int>>& transfers,
             trace::OpState state = trace::OpState::kScheduled) {
    ++batch_;
    for (const auto& [direction, peer] : transfers) {
      Transfer(group, rank, direction, peer, state);
      log_.ops.back().batch = batch_;
    }
  }
  void Report(int rank) {
    const auto at = std::lower_bound(log_.reported.begin(), log_.reported.end(), rank);
    if (at == log_.reported.end() || *at != rank) log_.reported.insert(at, rank);
  }
  trace::CommLog& log() { return log_; }
  CommDiagnosis Diagnose() const { return DiagnoseCommunication(log_); }

 private:
  trace::CommLog log_;
  int64_t order_ = 0, batch_ = 0;
  std::map<std::pair<uint32_t, int>, int64_t> numbers_;
};

inline std::vector<int> RanksOf(const std::vector<incident::Suspect>& suspects) {
  std::vector<int> ranks;
  ranks.reserve(suspects.size());
  for (const incident::Suspect& suspect : suspects)
    ranks.push_back(incident::RankOf(suspect).value_or(RankId(-1)).value());
  return ranks;
}
inline std::vector<std::string> NamesOf(const std::vector<incident::Suspect>& suspects) {
  std::vector<std::string> names;
  names.reserve(suspects.size());
  for (const incident::Suspect& suspect : suspects) names.push_back(suspect.name);
  return names;
}
inline std::vector<int> Named(const CommDiagnosis& diagnosis) {
  std::vector<int> ranks;
  for (const incident::Finding& finding : diagnosis.findings) {
    const std::vector<int> named = RanksOf(finding.suspects);
    ranks.insert(ranks.end(), named.begin(), named.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace lockstep::detect
