#include "lockstep/history/tables.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/cost/chance.h"

namespace lockstep::history {
namespace {

using control::Phase;
using incident::Syndrome;

constexpr double kHour = 3600, kConfidence = 0.95;

bool IsExplicit(Syndrome symptom) {
  return symptom == Syndrome::kCrash || symptom == Syndrome::kExit || symptom == Syndrome::kCorruptCheckpoint ||
         symptom == Syndrome::kWatcherLost || symptom == Syndrome::kNodeLost || symptom == Syndrome::kMachineFault ||
         symptom == Syndrome::kNetworkFault;
}

template <typename Visit>
void ForEachIncident(const std::vector<RunFacts>& runs, Visit visit) {
  for (const RunFacts& run : runs)
    for (const Incident& incident : run.incidents)
      if (!incident.drill) visit(incident);
}

// How much a second counts for, of a job of that size.
using Weight = double (*)(const Size&);
double OfJob(const Size&) { return 1; }
double OfRanks(const Size& size) { return size.ranks; }
double OfNodes(const Size& size) { return static_cast<double>(size.nodes); }

// By the phases of the ledger, in s.
using PhaseSeconds = std::array<double, control::kPhases>;

double& At(PhaseSeconds& seconds, Phase phase) { return seconds[static_cast<size_t>(phase)]; }

const Size& SizeAt(const RunFacts& run, Nanos wall) {
  for (const Size& size : run.sizes)
    if (wall < size.to) return size;
  return run.sizes.back();
}

PhaseSeconds PhasesOf(const RunFacts& run, Weight weight) {
  PhaseSeconds seconds{};
  for (const Size& size : run.sizes) {
    const control::Ledger::Sums sums = run.Phases(size);
    for (size_t i = 0; i < sums.size(); ++i) seconds[i] += weight(size) * ToSeconds(sums[i]).value;
  }
  for (const Incident& incident : run.incidents) {
    if (!incident.drill) continue;
    const double each = weight(SizeAt(run, incident.opened));
    At(seconds, Phase::kDetect) -= each * incident.phases.detect.value;
    At(seconds, Phase::kDecide) -= each * incident.phases.decide.value;
    At(seconds, Phase::kRestart) -= each * incident.phases.restart.value;
    At(seconds, Phase::kRecompute) -= each * incident.phases.recompute.value;
  }
  return seconds;
}

double Sum(const PhaseSeconds& seconds) {
  double sum = 0;
  for (const double part : seconds) sum += part;
  return sum;
}

struct MeanAndMax {
  int64_t count = 0;
  double sum = 0, max = 0;
  void Add(double value) {
    ++count;
    sum += value;
    max = std::max(max, value);
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

// Hours in which something could fail: a job that is paused does nothing.
double Exposure(const std::vector<RunFacts>& runs, Weight weight) {
  double hours = 0;
  for (const RunFacts& run : runs) {
    PhaseSeconds seconds = PhasesOf(run, weight);
    hours += (Sum(seconds) - At(seconds, Phase::kPaused)) / kHour;
  }
  return hours;
}

Json FailureRow(const char* component, int64_t failures, const char* per, double hours) {
  const cost::Limits limits = cost::PoissonLimits(failures, kConfidence);
  const bool any = failures > 0;
  return {{"component", component},
          {"failures", failures},
          {"per", per},
          {"hours", hours},
          {"mttf_h", any ? Json(hours / static_cast<double>(failures)) : Json()},
          {"mttf_low_h", hours / limits.high},
          {"mttf_high_h", any ? Json(hours / limits.low) : Json()}};
}

}  // namespace

Seconds Lost(const incident::Phases& phases) {
  return phases.detect + phases.decide + phases.restart + phases.recompute;
}
Seconds ResolutionTime(const incident::Phases& phases) { return phases.decide + phases.restart; }

Json IncidentTable(const std::vector<RunFacts>& runs) {
  std::map<std::pair<int, std::string>, int64_t> counts;  // by class, then symptom
  constexpr std::array kClasses = {"explicit", "implicit", "manual"};
  int64_t all = 0;
  ForEachIncident(runs, [&](const Incident& incident) {
    const int kind = incident.symptom == Syndrome::kUpdate ? 2 : IsExplicit(incident.symptom) ? 0 : 1;
    ++counts[{kind, incident::SyndromeName(incident.symptom)}];
    ++all;
  });
  const auto stopped = std::count_if(runs.begin(), runs.end(), [](const RunFacts& run) { return run.stop_asked; });
  if (stopped > 0) counts[{2, "stop_asked"}] = stopped;
  all += stopped;
  std::vector<std::pair<std::pair<int, std::string>, int64_t>> rows(counts.begin(), counts.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.first, -a.second) < std::pair(b.first.first, -b.second);
  });
  Json table = Json::array();
  for (const auto& [key, count] : rows)
    table.push_back({{"class", kClasses[static_cast<size_t>(key.first)]},
                     {"symptom", key.second},
                     {"count", count},
                     {"share", static_cast<double>(count) / static_cast<double>(all)}});
  return table;
}

Json ResolutionTable(const std::vector<RunFacts>& runs) {
  std::map<std::pair<std::string, Resolution>, std::pair<MeanAndMax, MeanAndMax>> rows;
  ForEachIncident(runs, [&](const Incident& incident) {
    auto& [resolution, lost] = rows[{incident::SyndromeName(incident.symptom), incident.resolution}];
    resolution.Add(ResolutionTime(incident.phases).value);
    lost.Add(Lost(incident.phases).value);
  });
  Json table = Json::array();
  for (const auto& [key, times] : rows)
    table.push_back({{"symptom", key.first},
                     {"resolved_by", ResolutionName(key.second)},
                     {"count", times.first.count},
                     {"resolution_mean_s", times.first.mean()},
                     {"resolution_max_s", times.first.max},
                     {"lost_mean_s", times.second.mean()},
                     {"lost_max_s", times.second.max}});
  return table;
}

Json PhaseTable(const std::vector<RunFacts>& runs) {
  PhaseSeconds all{};
  for (const RunFacts& run : runs) {
    const PhaseSeconds seconds = PhasesOf(run, OfJob);
    for (size_t i = 0; i < all.size(); ++i) all[i] += seconds[i];
  }
  const double wall = Sum(all);
  Json table = Json::array();
  const auto add = [&](Phase phase) {
    table.push_back({{"phase", control::PhaseName(phase)},
                     {"hours", At(all, phase) / kHour},
                     {"share", wall > 0 ? At(all, phase) / wall : 0}});
  };
  add(Phase::kProductive);
  for (int i = 0; i < control::kPhases; ++i)
    if (static_cast<Phase>(i) != Phase::kProductive) add(static_cast<Phase>(i));
  return table;
}

Json FailureTable(const std::vector<RunFacts>& runs) {
  const double jobs = Exposure(runs, OfJob), ranks = Exposure(runs, OfRanks), nodes = Exposure(runs, OfNodes);
  std::array<int64_t, kComponents> failures{};
  int64_t all = 0;  // but those of watchers, which the job survives
  ForEachIncident(runs, [&](const Incident& incident) {
    if (!incident.IsFailure()) return;
    const Component component = incident.IsOfProgram() ? Component::kSoftware : incident.component;
    failures[static_cast<size_t>(component)] +=
        component == Component::kNode ? std::max<int64_t>(1, incident.nodes_lost) : 1;
    all += incident.component != Component::kWatcher;
  });
  Json table = Json::array();
  table.push_back(FailureRow("any", all, "job", jobs));
  for (int i = 0; i < kComponents; ++i) {
    const auto component = static_cast<Component>(i);
    const int64_t count = failures[static_cast<size_t>(i)];
    if (component == Component::kRank) {
      table.push_back(FailureRow("rank", count, "rank", ranks));
    } else if (component == Component::kNode) {
      table.push_back(FailureRow("node", count, "node", nodes));
    } else {
      const char* name = component == Component::kJob ? "not named" : ComponentName(component);
      table.push_back(FailureRow(name, count, "job", jobs));
    }
  }
  return table;
}

Time TimeOf(const std::vector<RunFacts>& runs, bool by_ranks) {
  Time time;
  for (const RunFacts& run : runs) {
    PhaseSeconds seconds = PhasesOf(run, by_ranks ? OfRanks : OfJob);
    time.productive_s += At(seconds, Phase::kProductive);
    time.wall_s += Sum(seconds);
  }
  return time;
}

Time TimeWithin(const std::vector<RunFacts>& runs, Nanos until, Seconds window) {
  Time time;
  for (const RunFacts& run : runs) {
    const Nanos to = std::min(until, run.end) - run.wall_offset, from = until - ToNanos(window) - run.wall_offset;
    const control::Ledger::Sums sums = run.ledger.Within(from, to);
    for (const Nanos sum : sums) time.wall_s += ToSeconds(sum).value;
    time.productive_s += ToSeconds(sums[static_cast<size_t>(Phase::kProductive)]).value;
  }
  return time;
}

}  // namespace lockstep::history
