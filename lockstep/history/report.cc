#include "lockstep/history/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/base/wall_time.h"
#include "lockstep/history/lemon.h"
#include "lockstep/history/tables.h"

namespace lockstep::history {
namespace {

constexpr double kHour = 3600, kDay = 86400;
constexpr Seconds kSliding{3600};
constexpr double kFalsePositives = 0.01;  // clusters without a lemon in which a node is called one
constexpr size_t kCostliest = 12;

Nanos NewestEvent(const std::vector<RunFacts>& runs) {
  Nanos newest = runs.front().end;
  for (const RunFacts& run : runs) newest = std::max(newest, run.end);
  return newest;
}

Json RunsJson(const Past& past) {
  const auto count = [&](Ending ending) { return std::ranges::count(past.runs, ending, &RunFacts::ending); };
  return {{"read", past.runs.size()},
          {"completed", count(Ending::kCompleted)},
          {"failed", count(Ending::kFailed)},
          {"stopped", count(Ending::kStopped)},
          {"unfinished", count(Ending::kUnfinished)},
          {"without_journal", past.without_journal},
          {"unread", past.unread.size()}};
}

Json UnreadJson(const Past& past) {
  Json list = Json::array();
  for (const Past::Unread& unread : past.unread) list.push_back({{"path", unread.path}, {"why", unread.why}});
  return list;
}

Json EttrJson(const std::vector<RunFacts>& runs, Nanos now) {
  const Time all = TimeOf(runs, false), by_ranks = TimeOf(runs, true), newest = TimeWithin(runs, now, kSliding);
  return {{"cumulative", all.ettr()},
          {"by_ranks", by_ranks.ettr()},
          {"sliding_1h", newest.ettr()},
          {"wall_h", all.wall_s / kHour},
          {"rank_hours", by_ranks.wall_s / kHour}};
}

double LostRankHours(const RunFacts& run) {
  double lost = 0;
  for (const Size& size : run.sizes) {
    const control::Ledger::Sums sums = run.Phases(size);
    const Nanos wall = std::accumulate(sums.begin(), sums.end(), Nanos{});
    lost += size.ranks * ToSeconds(wall - sums[static_cast<size_t>(control::Phase::kProductive)]).value / kHour;
  }
  return lost;
}

Json RunJson(const RunFacts& run) {
  const Nanos end = run.ledger_end();
  return {{"run", run.path},
          {"job", run.job},
          {"state", EndingName(run.ending)},
          {"begin", IsoTime(run.begin)},
          {"ranks", run.MostRanks()},
          {"wall_h", ToSeconds(run.end - run.begin).value / kHour},
          {"ettr", run.ledger.Cumulative(end)},
          {"ettr_sliding_1h", run.ledger.Sliding(end, kSliding)},
          {"lost_rank_hours", LostRankHours(run)},
          {"restarts", run.restarts},
          {"incidents", run.incidents.size()},
          {"verdict", run.verdict.empty() ? Json() : Json(run.verdict)}};
}

// Those that lost most rank-hours, first.
Json RunList(const std::vector<RunFacts>& runs, size_t most) {
  std::vector<std::pair<double, const RunFacts*>> order;
  order.reserve(runs.size());
  for (const RunFacts& run : runs) order.emplace_back(-LostRankHours(run), &run);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Json list = Json::array();
  for (size_t i = 0; i < std::min(most, order.size()); ++i) list.push_back(RunJson(*order[i].second));
  return list;
}

bool SpeaksOfNodes(const Incident& incident) { return incident.certain && !incident.drill && !incident.IsOfProgram(); }

std::vector<NodeRecord> NodeRecords(const std::vector<RunFacts>& runs, Nanos from) {
  std::map<std::string, NodeRecord> nodes;
  const auto of = [&](const std::string& name) -> NodeRecord& {
    NodeRecord& record = nodes[name];
    record.node = name;
    return record;
  };
  for (const RunFacts& run : runs) {
    for (const Stay& stay : run.stays)
      if (!stay.node.empty() && stay.to > from)
        of(stay.node).hours += ToSeconds(stay.to - std::max(stay.from, from)).value / kHour;
    for (const Incident& incident : run.incidents)
      if (SpeaksOfNodes(incident) && incident.opened >= from)
        for (const std::string& node : incident.nodes) ++of(node).named;
  }
  std::vector<NodeRecord> records;
  records.reserve(nodes.size());
  for (auto& [name, record] : nodes) records.push_back(std::move(record));
  return records;
}

Json LemonsJson(const std::vector<NodeRecord>& nodes) {
  Json list = Json::array();
  for (const Lemon& lemon : FindLemons(nodes, kFalsePositives))
    list.push_back({{"node", lemon.record.node},
                    {"named", lemon.record.named},
                    {"expected", lemon.expected},
                    {"hours", lemon.record.hours},
                    {"chance", fmt::format("{:.2g}", lemon.chance)}});
  const int64_t named = std::accumulate(nodes.begin(), nodes.end(), int64_t{0},
                                        [](int64_t sum, const NodeRecord& node) { return sum + node.named; });
  return {{"nodes", nodes.size()}, {"namings", named}, {"false_positive_rate", kFalsePositives}, {"lemons", list}};
}

Json DrillsJson(const std::vector<RunFacts>& runs) {
  int64_t count = 0;
  double lost = 0;
  for (const RunFacts& run : runs)
    for (const Incident& incident : run.incidents)
      if (incident.drill) ++count, lost += Lost(incident.phases).value;
  return {{"incidents", count}, {"lost_s", lost}};
}

}  // namespace

Json ClusterReport(const Past& past, const ReportOptions& options) {
  const std::vector<RunFacts>& runs = past.runs;
  const Nanos now = NewestEvent(runs), from = now - ToNanos({options.days * kDay});
  Json report = {{"window", {{"days", options.days}, {"from", IsoTime(from)}, {"to", IsoTime(now)}}},
                 {"runs", RunsJson(past)},
                 {"unread", UnreadJson(past)},
                 {"ettr", EttrJson(runs, now)}};
  report[options.all_runs ? "all_runs" : "costliest_runs"] = RunList(runs, options.all_runs ? runs.size() : kCostliest);
  report["incidents"] = IncidentTable(runs);
  report["resolution"] = ResolutionTable(runs);
  report["time"] = PhaseTable(runs);
  report["failures"] = FailureTable(runs);
  report["lemons"] = LemonsJson(NodeRecords(runs, from));
  report["standbys"] = SizingReport(runs, options.sizing);
  report["drills"] = DrillsJson(runs);
  return report;
}

}  // namespace lockstep::history
