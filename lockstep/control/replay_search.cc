#include "lockstep/control/replay_search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/detect/replay_report.h"

namespace lockstep::control {
namespace {

constexpr int kShares = 6;  // two rounds and one that confirms, each of which may have to be run twice
constexpr Seconds kLongestRun{300}, kLongestWait{30}, kUntilStopped{2};
constexpr int kMostTries = 3;
constexpr detect::ReplayOdds kOdds{};  // a fault that shows only sometimes has to be looked for by hand
constexpr detect::ReplayLimits kLimits{.confirm = true};

Seconds AtMost(Seconds share, Seconds most) { return std::min(share, most); }

}  // namespace

ReplayQuestion QuestionOf(const State& state, const Probe& probe, uint64_t id) {
  ReplayQuestion question{id, probe, VersionToRun(state), {}, 1};
  question.probe.search = id;
  for (const NodeSpec& node : state.spec.nodes) question.nodes.push_back({node.name, node.ranks});
  const absl::StatusOr<cluster::Layout> layout = cluster::LayoutFromJson(state.spec.layout);
  if (layout.ok()) question.pipeline_ranks = layout->tp * layout->cp * layout->pp;
  return question;
}

ReplaySearch::ReplaySearch(ReplayQuestion question, Nanos now)
    : question_(std::move(question)), began_(now), share_{question_.probe.at_most.value / kShares} {}

// ---- who takes part ----

void ReplaySearch::Hear(int node, const ReplayReady& ready, Nanos now) {
  if (over() || ready.search != id()) return;
  if (testing_ && !ready_.contains(node)) return;  // it came too late
  if (ready.port != 0) port_[node] = ready.port;
  if (!testing_) {
    ready_.try_emplace(node, ready);
    if (ready_.size() == question_.nodes.size()) Begin(now);
    return;
  }
  for (Attempt& attempt : attempts_) {
    const bool is_in_it = std::find(attempt.nodes.begin(), attempt.nodes.end(), node) != attempt.nodes.end();
    if (!is_in_it || attempt.outcome || attempt.answers.contains(node) || ready.run == attempt.run) continue;
    RunAgain(attempt, fmt::format("node {} lost it", NameOf(node)), now);
  }
}

void ReplaySearch::Refused(int node, Nanos now) {
  Hear(node, ReplayReady{.search = id(), .error = "its agent is of a version that knows no replay"}, now);
}

absl::StatusOr<int> ReplaySearch::PipelineNodes() const {
  const int model = question_.pipeline_ranks, ranks = RanksOf(nodes_.front());
  const bool alike = std::all_of(nodes_.begin(), nodes_.end(), [&](int node) { return RanksOf(node) == ranks; });
  if (model == 1 || (alike && ranks % model == 0)) return 1;
  if (alike && model % ranks == 0) return model / ranks;
  return InvalidArgument("a pipeline of {} ranks fills no whole nodes", model);
}

// The job's own script where it has asked, and where groups of it can be made; else our model, which has no pipelines.
absl::StatusOr<detect::ReplayGrid> ReplaySearch::ChooseProgram() {
  const int version = question_.version.number;
  own_script_ = std::any_of(nodes_.begin(), nodes_.end(), [&](int node) {
    const std::vector<int>& opted_in = ready_.at(node).opted_in;
    return std::find(opted_in.begin(), opted_in.end(), version) != opted_in.end();
  });
  if (!own_script_) return detect::ChooseReplayGrid(static_cast<int>(nodes_.size()), 1);
  const absl::StatusOr<int> unit = PipelineNodes();
  const int whole = unit.ok() ? static_cast<int>(nodes_.size()) / *unit * *unit : 0;
  const auto grid = unit.ok() ? detect::ChooseReplayGrid(whole, *unit) : unit.status();
  if (!grid.ok()) {
    remarks_.push_back("the script can't be replayed by groups: " + Message(grid.status()));
    own_script_ = false;
    return detect::ChooseReplayGrid(static_cast<int>(nodes_.size()), 1);
  }
  for (; static_cast<int>(nodes_.size()) > whole; nodes_.pop_back())
    remarks_.push_back(fmt::format("node {} was left out, for pipelines take {} nodes", NameOf(nodes_.back()), *unit));
  return grid;
}

void ReplaySearch::Begin(Nanos now) {
  for (const auto& [node, ready] : ready_) {
    if (ready.error.empty()) nodes_.push_back(node);
    if (!ready.error.empty()) remarks_.push_back(fmt::format("node {} took no part: {}", NameOf(node), ready.error));
  }
  if (nodes_.size() < 2) return End(fmt::format("it takes 2 nodes, and {} can take part", nodes_.size()));
  const absl::StatusOr<detect::ReplayGrid> grid = ChooseProgram();
  if (!grid.ok()) return End(Message(grid.status()));
  result_.grid = *grid;
  testing_.emplace(*grid, kOdds, kLimits);
  BeginRound(now);
}

// ---- rounds ----

std::string ReplaySearch::RankName(size_t group, int rank) const {
  int first = 0;
  for (const int machine : round_->round().groups[group]) {
    const int node = nodes_[static_cast<size_t>(machine)];
    if (rank < first + RanksOf(node)) return detect::ReplayedRankName("node " + NameOf(node), rank);
    first += RanksOf(node);
  }
  LS_CHECK(false, "rank {} of {}", rank, first);
}

void ReplaySearch::BeginRound(Nanos now) {
  round_.emplace(testing_->Next(), votes_, [this](size_t group, int rank) { return RankName(group, rank); });
  BeginDue(now);
}

void ReplaySearch::BeginDue(Nanos now) {
  attempts_.clear();
  for (const size_t group : round_->Due()) {
    Attempt attempt;
    attempt.group = group;
    for (const int machine : round_->round().groups[group])
      attempt.nodes.push_back(nodes_[static_cast<size_t>(machine)]);
    attempts_.push_back(std::move(attempt));
  }
  for (Attempt& attempt : attempts_) Run(attempt, now);
}

void ReplaySearch::Run(Attempt& attempt, Nanos now) {
  attempt.run = ++runs_;
  ++attempt.tries;
  attempt.began = now;
  attempt.troubled = Nanos{};
  attempt.stopped = false;
  attempt.answers.clear();
  const int leads = attempt.nodes.front();
  ReplayRun run{.search = id(), .run = attempt.run, .incident = question_.probe.incident, .own_script = own_script_};
  run.version = question_.version;
  run.nodes = attempt.nodes;
  run.master_host = ready_.at(leads).host;
  run.master_port = port_[leads];
  run.deadline = AtMost(share_, kLongestRun);
  run.ranks = 0;
  for (const int node : attempt.nodes) run.ranks += RanksOf(node);
  for (const int node : attempt.nodes) {
    words_.emplace_back(node, run);
    ++run.index;
    run.first_rank += RanksOf(node);
  }
}

void ReplaySearch::StopRun(Attempt& attempt) {
  attempt.stopped = true;
  for (const int node : attempt.nodes)
    if (!attempt.answers.contains(node)) words_.emplace_back(node, ReplayStop{id(), attempt.run});
}

void ReplaySearch::RunAgain(Attempt& attempt, const std::string& why, Nanos now) {
  if (over()) return;
  if (attempt.tries >= kMostTries) return End(fmt::format("no run came about in {} attempts: {}", kMostTries, why));
  StopRun(attempt);
  Run(attempt, now);
}

// ---- answers ----

ReplaySearch::Attempt* ReplaySearch::AttemptOf(int node, uint64_t run) {
  for (Attempt& attempt : attempts_) {
    const bool is_in_it = std::find(attempt.nodes.begin(), attempt.nodes.end(), node) != attempt.nodes.end();
    if (attempt.run == run && is_in_it) return &attempt;
  }
  return nullptr;
}

void ReplaySearch::Hear(int node, const ReplayEnded& ended, Nanos now) {
  if (over() || ended.search != id()) return;
  if (ended.port != 0) port_[node] = ended.port;
  Attempt* attempt = AttemptOf(node, ended.run);
  if (attempt == nullptr || attempt->outcome || !attempt->answers.try_emplace(node, ended).second) return;
  if (attempt->troubled.value == 0 && !ended.trouble.empty()) attempt->troubled = now;
  if (attempt->answers.size() == attempt->nodes.size()) Conclude(*attempt, now);
}

// The first trouble of all is the cause.
absl::Status ReplaySearch::Read(const Attempt& attempt, detect::GroupRun& run) const {
  Nanos first;
  int rank = 0, ranks = 0;
  for (const int node : attempt.nodes) ranks += RanksOf(node);
  for (const int node : attempt.nodes) {
    const ReplayEnded& ended = attempt.answers.at(node);
    if (!ended.trouble.empty() && (run.trouble.empty() || ended.troubled_at < first)) {
      run.trouble = ended.trouble;
      first = ended.troubled_at;
    }
    for (int local = 0; local < RanksOf(node); ++local, ++rank) {
      if (static_cast<size_t>(local) >= ended.reports.size()) continue;
      LS_ASSIGN_OR_RETURN(const auto values,
                          detect::ParseReplayReport(ended.reports[static_cast<size_t>(local)], rank, ranks));
      run.values.insert(run.values.end(), values.begin(), values.end());
    }
  }
  return absl::OkStatus();
}

void ReplaySearch::Conclude(Attempt& attempt, Nanos now) {
  for (const auto& [node, ended] : attempt.answers) {
    if (ended.port_taken)
      return RunAgain(attempt, fmt::format("on node {} others take the ports where ranks meet", NameOf(node)), now);
    if (!ended.error.empty()) return RunAgain(attempt, fmt::format("node {}: {}", NameOf(node), ended.error), now);
  }
  detect::GroupRun run{attempt.group, "", {}, ToSeconds(now - attempt.began)};
  if (const absl::Status read = Read(attempt, run); !read.ok()) return End(Message(read));
  attempt.outcome = std::move(run);
  GoOnIfAllConcluded(now);
}

void ReplaySearch::GoOnIfAllConcluded(Nanos now) {
  std::vector<detect::GroupRun> runs;
  for (const Attempt& attempt : attempts_) {
    if (!attempt.outcome) return;
    runs.push_back(*attempt.outcome);
  }
  if (const absl::Status taken = round_->Take(runs); !taken.ok()) return End(Message(taken));
  if (!round_->Due().empty()) return BeginDue(now);
  testing_->Observe(round_->round(), round_->outcomes());
  result_.rounds.push_back(round_->round());
  result_.outcomes.push_back(round_->outcomes());
  if (testing_->Done()) return End("");
  BeginRound(now);
}

// ---- time ----

void ReplaySearch::Look(Attempt& attempt, Nanos now) {
  if (attempt.outcome) return;
  const bool settled = attempt.troubled.value != 0 && now - attempt.troubled >= ToNanos(AtMost(share_, kUntilStopped));
  if (settled && !attempt.stopped) StopRun(attempt);
  // The ranks' own deadline begins when they run. Of a search that has little time, that is a third at most.
  const Seconds patience = AtMost(share_, kLongestRun) + AtMost(Seconds{2 * share_.value}, kUntilRanksRun);
  if (now - attempt.began < ToNanos(patience)) return;
  std::string silent;
  for (const int node : attempt.nodes)
    if (!attempt.answers.contains(node)) silent += (silent.empty() ? "" : ", ") + NameOf(node);
  End(fmt::format("no answer for {:g} s, which says nothing of a machine: {}", patience.value, silent));
}

void ReplaySearch::Tick(Nanos now) {
  if (over()) return;
  if (now - began_ >= ToNanos(question_.probe.at_most))
    return End(fmt::format("it was to take {:g} s at most", question_.probe.at_most.value));
  if (!testing_ && now - began_ >= ToNanos(AtMost(share_, kLongestWait))) return Begin(now);
  for (size_t i = 0; i < attempts_.size() && !over(); ++i) Look(attempts_[i], now);
}

void ReplaySearch::WasAway(Nanos away) {
  began_ = began_ + away;
  for (Attempt& attempt : attempts_) {
    attempt.began = attempt.began + away;
    if (attempt.troubled.value != 0) attempt.troubled = attempt.troubled + away;
  }
}

void ReplaySearch::Lost(int node) {
  if (over()) return;
  End(fmt::format("node {} was lost meanwhile", NameOf(node)));
}

// ---- the answer ----

incident::Finding ReplaySearch::Doubted(incident::Finding finding, bool done, size_t named) const {
  if (!finding.certain) return finding;
  std::set<std::string> kinds;
  for (const int node : nodes_) kinds.insert(ready_.at(node).processor);
  if (kinds.size() > 1)
    finding.evidence.push_back(fmt::format("nodes differ in kind, and so may their bits: {}", fmt::join(kinds, "; ")));
  if (2 * named >= nodes_.size())
    finding.evidence.push_back(fmt::format("{} of {} nodes are named, which is no minority", named, nodes_.size()));
  finding.certain = done && kinds.size() == 1 && 2 * named < nodes_.size();
  return finding;
}

std::string ReplaySearch::Note(const std::string& why) const {
  std::string note = fmt::format("{} nodes replayed {} in {} rounds, {} runs", nodes_.size(),
                                 own_script_ ? "the script" : "a model of ours", result_.rounds.size(), runs_);
  if (runs_ == 0) note = "nothing was replayed";
  if (!why.empty()) note += "; it ended early: " + why;
  for (const std::string& remark : remarks_) note += "; " + remark;
  return note;
}

void ReplaySearch::Stop() {
  if (std::exchange(over_, true)) return;
  for (size_t node = 0; node < question_.nodes.size(); ++node)
    words_.emplace_back(static_cast<int>(node), ReplayStop{id(), 0});
}

void ReplaySearch::End(const std::string& why) {
  Stop();
  Probed probed{question_.probe.epoch, Rung::kReplay};
  if (result_.rounds.size() >= 2) {
    result_.verdict = testing_->Verdict();
    std::vector<std::string> names;
    for (const int node : nodes_) names.push_back(NameOf(node));
    auto finding = detect::ReplayFinding(result_, incident::Syndrome::kMachineFault, names);
    if (finding) probed.findings = {Doubted(*std::move(finding), testing_->Done(), result_.verdict.bad.size())};
  }
  probed.note = Note(why);
  for (int node = 0; node < static_cast<int>(question_.nodes.size()); ++node)
    if (!ready_.contains(node)) probed.unanswered.push_back(NameOf(node));
  answer_ = std::move(probed);
}

}  // namespace lockstep::control
