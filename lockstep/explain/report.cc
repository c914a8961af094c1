#include "lockstep/explain/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/notes.h"
#include "lockstep/explain/sample.h"
#include "lockstep/explain/unsettled.h"
#include "lockstep/trace/untold_transfers.h"

namespace lockstep::explain {
Json Ordered(const std::vector<std::string>& names, const std::vector<double>& values) {
  Json json = Json::object();
  auto& object = json.get_ref<Json::object_t&>();  // not by name: each would be looked for among all before it
  for (const size_t i : Descending(values)) object.emplace_back(names[i], values[i]);
  return json;
}

namespace {

constexpr double kSecondsPerHour = 3600;

constexpr char kHealthy[] = "healthy";

// trusted: the replay takes as long as the steps did. What it misses may be anything, so it vouches for no health.
std::string Verdict(const Causes& causes, bool trusted) {
  if (!Straggles(causes.lost()))
    return trusted ? kHealthy : std::string(kUnclear) + ": the replay misses much of the step";
  return std::string(Straggles(causes.lost(), kStragglesBadly) ? "straggles" : "straggles a little") +
         (trusted ? "" : ", but the replay misses much of the step");
}

// The three op types that are launched latest.
Json LateLaunches(const WhatIf& analysis) {
  constexpr size_t kMost = 3;
  const Split& launch = analysis.Launch(By::kKind);
  Json json = Json::object();
  for (const size_t i : Descending(launch.total))
    if (json.size() < kMost) json[launch.names[i]] = launch.total[i];
  return json;
}

Json PathJson(const trace::TracedJob& job, const WhatIf& analysis) {
  const PathCost cost = analysis.CriticalPath();
  std::vector<std::string> names = job.kinds;
  std::vector<double> seconds = cost.by_kind;
  names.emplace_back("late_starts");
  seconds.push_back(cost.late_starts);
  const double step = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  Json workers = Json::array();
  for (const auto& [worker, rank, path_s] : analysis.Ranked([&](const WhatIf::Worker& one) {
         return cost.by_worker[static_cast<size_t>(one.first)][static_cast<size_t>(one.second)];
       }))
    if (path_s > 0)
      workers.push_back({{"dp", worker.first}, {"stage", worker.second}, {"rank", rank}, {"share", path_s / step}});
  return {{"by_optype", Ordered(names, seconds)}, {"by_worker", std::move(workers)}};
}

Json SuspectJson(const CauseSuspect& suspect, const trace::Origin& origin) {
  Json json = Json::object();
  if (suspect.dp) json["dp"] = *suspect.dp;
  if (suspect.stage) json["stage"] = *suspect.stage;
  if (suspect.rank) json["rank"] = *suspect.rank;
  if (const auto host = origin.host_of.find(suspect.rank.value_or(-1)); host != origin.host_of.end())
    json["host"] = host->second;
  if (suspect.first_step) json["steps"] = {*suspect.first_step, *suspect.last_step};
  return json;
}

Json CauseJson(const Cause& cause, const trace::Origin& origin) {
  Json suspects = Json::array();
  for (const CauseSuspect& suspect : cause.suspects) suspects.push_back(SuspectJson(suspect, origin));
  return {{"cause", CauseName(cause.kind)},
          {"suspects", suspects},
          {"share", cause.share},
          {"gain_s", cause.gain_s},
          {"evidence", cause.evidence}};
}

// Of long lists the first eight; `more` tells how many are left out.
void Shorten(const std::string& prefix, Json& report, Json& more) {
  constexpr size_t kMost = 8;
  constexpr std::array kLists = {"by_optype", "by_stage",     "by_dp_rank", "by_worker",
                                 "clocks",    "damaged_jobs", "nodes",      "absent"};
  for (auto& [key, value] : report.items()) {
    if (std::find(kLists.begin(), kLists.end(), key) == kLists.end() || value.size() <= kMost) continue;
    more[prefix + key] = value.size() - kMost;
    Json first = value.is_array() ? Json::array() : Json::object();
    for (const auto& [name, one] : value.items()) {
      if (first.size() == kMost) break;
      value.is_array() ? first.push_back(one) : void(first[name] = one);
    }
    value = std::move(first);
  }
}

constexpr char kAsFarAsTold[] = ", as far as is told who communicates with whom";
constexpr char kAsFarAsTheseTell[] = ", as far as these ranks tell";

// Of those that have rows.
Json ByDpRank(const trace::TracedJob& job, const WhatIf& analysis) {
  const auto& of_all = analysis.Blocking(By::kDp);
  std::vector<std::string> names;
  std::vector<double> total;
  for (size_t dp = 0; dp < job.ranks.size(); ++dp) {
    if (std::ranges::all_of(job.ranks[dp], [](int32_t rank) { return rank < 0; })) continue;
    names.push_back(of_all.names[dp]);
    total.push_back(of_all.total[dp]);
  }
  return Ordered(names, total);
}

// No rank can be called healthy where what it communicates, or computes, is held against nobody's.
void CallUnclear(const std::string& why, std::string& verdict) {
  if (verdict.starts_with(kHealthy))
    verdict.replace(0, sizeof(kHealthy) - 1, std::string(kUnclear) + ": " + why);
  else
    verdict += ", but " + why;
}

void AddDoubt(const std::string& doubt, Json& report) {
  if (const auto verdict = report["verdict"].get<std::string>(); verdict.find(doubt) == std::string::npos)
    report["verdict"] = verdict + doubt;
}

bool NobodyHasPeers(const trace::TracedJob& job, const Json& counters) {
  return counters.value(trace::kRanksWithoutPeers, uint64_t{0}) ==
         static_cast<uint64_t>(job.dp) * static_cast<uint64_t>(job.pp);
}

// Behind a verdict, by the counters of the report: whom nobody was held against, whether ranks are absent, and whether
// they may be stages.
std::string Doubts(const Json& counters, bool somebody_has_peers) {
  std::string doubts;
  if (somebody_has_peers && counters.contains(trace::kRanksWithoutPeers))
    doubts += fmt::format(", but for {} ranks with no other to compare them with",
                          counters[trace::kRanksWithoutPeers].get<uint64_t>());
  if (counters.contains(trace::kAbsentRanks) || counters.contains(kWorkersWithoutRows)) doubts += kAsFarAsTheseTell;
  if (counters.contains(trace::kUntoldTransfers)) doubts += kAsFarAsTold;
  return doubts;
}

}  // namespace

void AddRanks(const trace::KinetoJob& traced, Json& report) {
  constexpr double kPerMicro = 1e3, kPerMillion = 1e6;  // ns; of 1
  report["ranks"] = {{"given", traced.ranks.size()}, {"of", traced.world_size}, {"absent", traced.absent_ranks}};
  if (!traced.lacking_steps.empty()) report["ranks"]["lacking_steps"] = traced.lacking_steps;
  report["clocks"] = Json::array();
  for (size_t i = 0; i < traced.ranks.size(); ++i)
    report["clocks"].push_back({{"rank", traced.ranks[i]},
                                {"offset_us", traced.clocks[i].offset_ns / kPerMicro},
                                {"drift_ppm", traced.clocks[i].drift * kPerMillion},
                                {"error_us", traced.clocks[i].error_ns / kPerMicro}});
  constexpr double kWorthAsking = 0.03;  // of a step
  constexpr size_t kMostAsked = 8;
  Unsettled unsettled = FindUnsettled(traced);
  const bool asks = unsettled.at_most_s >= kWorthAsking * report["step_s"]["measured"].get<double>();
  for (Json& cause : report["causes"]) {
    const auto kind = cause["cause"].get<std::string>();
    const bool collective = kind == CauseName(CauseKind::kRing) || kind == CauseName(CauseKind::kFabric);
    if (collective && unsettled.all_collectives) {
      cause["cause"] = kind + "_or_late_rank";
      cause["evidence"].push_back(
          "a rank whose file is not here, or of which is not told with whom it communicates, may have come late: these "
          "files can't tell it from a slow network");
    } else if (asks && !unsettled.ranks.empty() && (collective || kind == CauseName(CauseKind::kLink))) {
      cause["evidence"].push_back("or a rank whose file is not here was late: these can't tell it from a slow network");
    }
  }
  constexpr double kFewUnmatched = 0.05;                                    // of the time of all communications
  const bool told = !report["counters"].contains(trace::kUntoldTransfers);  // else the verdict says so already
  if (told && unsettled.unmatched_share >= kFewUnmatched) {
    auto verdict = report["verdict"].get<std::string>();
    CallUnclear(fmt::format("{} of {} communications could not be matched between ranks", unsettled.unmatched,
                            unsettled.communications),
                verdict);
    report["verdict"] = verdict;
  }
  const bool lacks_ranks = !unsettled.ranks.empty() || !traced.absent_ranks.empty();
  if (lacks_ranks) AddDoubt(kAsFarAsTheseTell, report);
  if (asks && unsettled.ranks.empty()) AddDoubt(kAsFarAsTold, report);
  const bool alone =
      lacks_ranks && (traced.ranks.size() == 1 || report["counters"].contains(trace::kRanksWithoutPeers));
  if (alone)
    report["notes"].push_back(
        "whether a rank is slow itself is seen only beside another that does the same: it needs the file of one more");
  if (!asks && !alone) return;
  unsettled.ranks.resize(std::min(unsettled.ranks.size(), kMostAsked));
  report["unsettled"] = {{"at_most_s", unsettled.at_most_s}, {"ask_ranks", unsettled.ranks}};
}

Json Report(const trace::TracedJob& job, const WhatIf& analysis, const Causes& causes) {
  const bool trusted = std::abs(Mean(analysis.measured()) / causes.step_s - 1) <= kTrusted;
  Json json;
  json["job"] = job.name;
  const Notes notes = NotesOf(job);
  Json counted = Json::object();
  for (const auto* counters : {&job.counters, &notes.counters})
    for (const trace::Counter& counter : *counters) counted[counter.name] = counter.count;
  std::string verdict = Verdict(causes, trusted) + (notes.clocks_disagree ? ", but clocks disagree" : "");
  const bool somebody_has_peers = !NobodyHasPeers(job, counted);
  if (!somebody_has_peers) CallUnclear("no rank has another to compare it with", verdict);
  json["verdict"] = verdict + Doubts(counted, somebody_has_peers);
  if (!notes.texts.empty()) json["notes"] = notes.texts;
  json["slowdown"] = analysis.slowdown();
  json["launch_slowdown"] = analysis.launch_slowdown();
  if (!trusted) json["late_launches"] = LateLaunches(analysis);
  json["wasted"] = {{"share", causes.lost()},
                    {"gpu_hours", causes.loss_s * static_cast<double>(analysis.steps().size()) *
                                      static_cast<double>(job.world_size) / kSecondsPerHour}};
  json["steps"] = analysis.steps().size();
  json["step_s"] = {{"measured", Mean(analysis.measured())},
                    {"without_delays", analysis.nodelay_mean()},
                    {"ideal", analysis.ideal_mean()}};
  json["causes"] = Json::array();
  for (const Cause& cause : causes.found) json["causes"].push_back(CauseJson(cause, job.origin));
  json["unexplained"] = causes.unexplained();
  for (const auto& [name, by] : {std::pair("by_optype", By::kKind), {"by_stage", By::kStage}})
    json[name] = Ordered(analysis.Blocking(by).names, analysis.Blocking(by).total);
  json["by_dp_rank"] = ByDpRank(job, analysis);
  const std::vector<WhatIf::WorkerCost> workers = analysis.ByWorker();
  json["by_worker"] = Json::array();
  for (const auto& [worker, rank, slowdown] : workers)
    json["by_worker"].push_back(
        {{"dp", worker.first}, {"stage", worker.second}, {"rank", rank}, {"slowdown", slowdown}});
  json["critical_path"] = PathJson(job, analysis);
  const bool tell = analysis.slowdown() >= kStraggles;
  json["m_w"] = tell ? Json(analysis.RemoveCostliest(workers).rem) : Json();
  json["m_s"] = tell ? Json(analysis.RemoveStage(job.pp - 1).rem) : Json();
  json["counters"] = std::move(counted);
  return json;
}

Json Brief(const Json& report) {
  Json brief = report, more = Json::object();
  Shorten("", brief, more);
  if (brief.contains("critical_path")) Shorten("critical_path.", brief["critical_path"], more);
  if (!more.empty()) brief["more_in_json"] = std::move(more);
  return brief;
}

std::string SuspectText(const Json& suspect) {
  std::string text;
  for (const auto& [key, value] : suspect.items()) {
    if (!text.empty()) text += ", ";
    if (key == "steps") {
      text += fmt::format("steps {} to {}", value[0].get<int64_t>(), value[1].get<int64_t>());
    } else {
      text += fmt::format("{} {}", key, value.is_string() ? value.get<std::string>() : OneLine(value));
    }
  }
  return text;
}

}  // namespace lockstep::explain
