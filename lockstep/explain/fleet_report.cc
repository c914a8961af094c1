#include "lockstep/explain/fleet_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/explain/report.h"

namespace lockstep::explain {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr size_t kWorst = 8;

double Number(const Json& line, const char* key) { return line.at(key).get<double>(); }

bool Straggles(const Json& line) { return explain::Straggles(Number(line, "lost")); }

bool IsUnclear(const Json* line) { return line->at("verdict").get<std::string>().starts_with(kUnclear); }

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// The smallest value that `share` of all do not exceed. NaN of none: null in JSON.
double Quantile(const std::vector<double>& ascending, double share) {
  if (ascending.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(ascending.size())));
  return ascending[std::max<size_t>(rank, 1) - 1];
}

std::vector<double> Slowdowns(const std::vector<const Json*>& lines) {
  std::vector<double> slowdowns;
  slowdowns.reserve(lines.size());
  for (const Json* line : lines) slowdowns.push_back(Number(*line, "slowdown"));
  std::sort(slowdowns.begin(), slowdowns.end());
  return slowdowns;
}

Json BySlowdown(const std::vector<double>& ascending) {
  constexpr std::array kFrom = {0.0, kStraggles, kStragglesBadly, 1.2, 1.5, 2.0, 3.0};
  Json json = Json::array();
  for (size_t i = 0; i < kFrom.size(); ++i) {
    const auto begin = std::lower_bound(ascending.begin(), ascending.end(), kFrom[i]);
    const bool last = i + 1 == kFrom.size();
    const auto end = last ? ascending.end() : std::lower_bound(begin, ascending.end(), kFrom[i + 1]);
    json.push_back({{"slowdown", last ? fmt::format("{:.2f} and more", kFrom[i])
                                      : fmt::format("{:.2f} to {:.2f}", std::max(kFrom[i], 1.0), kFrom[i + 1])},
                    {"jobs", end - begin}});
  }
  return json;
}

double Sum(const std::vector<const Json*>& lines, const char* key) {
  double sum = 0;
  for (const Json* line : lines) sum += Number(*line, key);
  return sum;
}

// A row of by_size or by_day.
Json GroupJson(const char* key, const std::string& name, const std::vector<const Json*>& lines) {
  const auto straggling = std::count_if(lines.begin(), lines.end(), [](const Json* line) { return Straggles(*line); });
  const double traced = Sum(lines, "gpu_hours"), wasted = Sum(lines, "wasted_gpu_hours");
  return {{key, name},
          {"jobs", lines.size()},
          {"straggling", straggling},
          {"slowdown_median", Quantile(Slowdowns(lines), 0.5)},
          {"gpu_hours", traced},
          {"wasted_gpu_hours", wasted},
          {"wasted_share", Share(wasted, traced)}};
}

using Groups = std::map<std::pair<int64_t, std::string>, std::vector<const Json*>>;  // by order and name

Json GroupsJson(const char* key, const Groups& groups) {
  Json json = Json::array();
  for (const auto& [place, lines] : groups) json.push_back(GroupJson(key, place.second, lines));
  return json;
}

// Powers of two: "64-127".
Groups BySize(const std::vector<const Json*>& lines) {
  Groups groups;
  for (const Json* line : lines) {
    const auto gpus = line->at("gpus").get<int64_t>();
    int64_t least = 1;
    while (least * 2 <= gpus) least *= 2;
    groups[{least, least == 1 ? "1" : fmt::format("{}-{}", least, 2 * least - 1)}].push_back(line);
  }
  return groups;
}

Groups ByDay(const std::vector<const Json*>& lines) {
  Groups groups;
  for (const Json* line : lines) {
    const auto day = line->at("day").get<std::string>();
    groups[{0, day.empty() ? "not told" : day}].push_back(line);
  }
  return groups;
}

struct Blame {
  std::set<std::string> jobs;
  double gpu_hours = 0;
  std::set<std::string> causes;
};

// What no cause has would be worth a name.
bool IsPartlyUnexplained(const Json* line) {
  return Straggles(*line) && Number(*line, "unexplained_gpu_hours") >=
                                 WorthAName(Number(*line, "gpu_hours"), Number(*line, "wasted_gpu_hours"));
}

Json ByCause(const std::vector<const Json*>& lines, double wasted) {
  std::map<std::string, Blame> causes;
  for (const Json* line : lines)
    for (const Json& cause : line->at("causes")) {
      Blame& blame = causes[cause.at("cause").get<std::string>()];
      blame.jobs.insert(line->at("job").get<std::string>());
      blame.gpu_hours += Number(cause, "gpu_hours");
    }
  std::vector<std::pair<std::string, Blame>> order(causes.begin(), causes.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.gpu_hours > b.second.gpu_hours; });
  Json json = Json::array();
  for (const auto& [cause, blame] : order)
    json.push_back({{"cause", cause},
                    {"jobs", blame.jobs.size()},
                    {"gpu_hours", blame.gpu_hours},
                    {"share", Share(blame.gpu_hours, wasted)}});
  const double unexplained = Sum(lines, "unexplained_gpu_hours");
  json.push_back({{"cause", "unexplained"},
                  {"jobs", std::ranges::count_if(lines, IsPartlyUnexplained)},
                  {"gpu_hours", unexplained},
                  {"share", Share(unexplained, wasted)}});
  return json;
}

// Those named in most jobs first.
Json Nodes(const std::vector<const Json*>& lines) {
  std::map<std::string, Blame> named;
  std::map<std::string, size_t> took_part;
  for (const Json* line : lines) {
    for (const Json& host : line->at("hosts")) ++took_part[host.get<std::string>()];
    for (const Json& cause : line->at("causes"))
      for (const Json& host : cause.at("hosts")) {
        Blame& blame = named[host.get<std::string>()];
        blame.jobs.insert(line->at("job").get<std::string>());
        blame.gpu_hours += Number(cause, "gpu_hours") / static_cast<double>(cause.at("hosts").size());
        blame.causes.insert(cause.at("cause").get<std::string>());
      }
  }
  std::vector<std::pair<std::string, Blame>> order(named.begin(), named.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.jobs.size(), a.second.gpu_hours) > std::pair(b.second.jobs.size(), b.second.gpu_hours);
  });
  Json json = Json::array();
  for (const auto& [node, blame] : order)
    json.push_back({{"node", node},
                    {"named_in", blame.jobs.size()},
                    {"of_jobs", took_part[node]},
                    {"gpu_hours", blame.gpu_hours},
                    {"causes", fmt::format("{}", fmt::join(blame.causes, ", "))}});
  return json;
}

Json WorstJobs(std::vector<const Json*> lines) {
  std::stable_sort(lines.begin(), lines.end(), [](const Json* a, const Json* b) {
    return Number(*a, "wasted_gpu_hours") > Number(*b, "wasted_gpu_hours");
  });
  Json json = Json::array();
  for (const Json* line : lines) {
    if (json.size() == kWorst) break;
    if (!Straggles(*line)) continue;
    const Json& causes = line->at("causes");
    json.push_back({{"job", line->at("job")},
                    {"gpus", line->at("gpus")},
                    {"slowdown", line->at("slowdown")},
                    {"lost", line->at("lost")},
                    {"wasted_gpu_hours", line->at("wasted_gpu_hours")},
                    {"first_cause", causes.empty() ? Json("unexplained") : causes.front().at("cause")}});
  }
  return json;
}

Json Counters(const std::vector<const Json*>& lines) {
  std::map<std::string, uint64_t> sums;
  for (const Json* line : lines)
    for (const auto& [name, count] : line->at("counters").items()) sums[name] += count.get<uint64_t>();
  Json json = Json::object();
  for (const auto& [name, count] : sums) json[name] = count;
  return json;
}

}  // namespace

Json FleetLine(const std::string& id, const Explained& explained) {
  const Json& report = explained.report();
  const trace::TracedJob& job = explained.job();
  const double gpu_hours_per_s =
      report.at("steps").get<double>() * static_cast<double>(job.world_size) / kSecondsPerHour;
  const double wasted = Number(report.at("wasted"), "gpu_hours");
  Json line = {{"job", id},
               {"gpus", job.world_size},
               {"day", job.origin.day},
               {"steps", report.at("steps")},
               {"slowdown", report.at("slowdown")},
               {"lost", Number(report.at("wasted"), "share")},
               {"verdict", report.at("verdict")},
               {"gpu_hours", Number(report.at("step_s"), "measured") * gpu_hours_per_s},
               {"wasted_gpu_hours", wasted},
               {"causes", Json::array()}};
  for (const Json& cause : report.at("causes")) {
    std::set<std::string> hosts;
    for (const Json& suspect : cause.at("suspects"))
      if (suspect.contains("host")) hosts.insert(suspect.at("host").get<std::string>());
    line["causes"].push_back(
        {{"cause", cause.at("cause")}, {"gpu_hours", Number(cause, "share") * wasted}, {"hosts", hosts}});
  }
  const Json& steps = report.at("step_s");
  line["missed_gpu_hours"] = (Number(steps, "measured") - Number(steps, "without_delays")) * gpu_hours_per_s;
  line["unexplained_gpu_hours"] = Number(report, "unexplained") * wasted;
  std::set<std::string> hosts;
  for (const auto& [rank, host] : job.origin.host_of) hosts.insert(host);
  line["hosts"] = hosts;
  line["counters"] = report.at("counters");
  bool finite = true;
  for (const char* key : {"slowdown", "gpu_hours", "wasted_gpu_hours", "missed_gpu_hours", "unexplained_gpu_hours"})
    finite = finite && std::isfinite(Number(line, key));
  for (const Json& cause : line["causes"]) finite = finite && std::isfinite(Number(cause, "gpu_hours"));
  return finite ? line : DamagedLine(id, InvalidArgument("{}: its times are beyond what can be compared", id));
}

Json DamagedLine(const std::string& id, const absl::Status& error) { return {{"job", id}, {"error", Message(error)}}; }

Json FleetReport(std::vector<Json> lines) {
  std::sort(lines.begin(), lines.end(), [](const Json& a, const Json& b) { return a.at("job") < b.at("job"); });
  std::vector<const Json*> whole;
  Json damaged = Json::array();
  for (const Json& line : lines) line.contains("error") ? damaged.push_back(line) : whole.push_back(&line);
  const std::vector<double> slowdowns = Slowdowns(whole);
  const double traced = Sum(whole, "gpu_hours"), wasted = Sum(whole, "wasted_gpu_hours");
  const auto straggling = std::count_if(whole.begin(), whole.end(), [](const Json* line) { return Straggles(*line); });
  Json report;
  report["jobs"] = lines.size();
  report["damaged"] = damaged.size();
  report["straggling"] = {{"jobs", straggling},
                          {"share", Share(static_cast<double>(straggling), static_cast<double>(whole.size()))}};
  std::vector<const Json*> unclear;
  std::ranges::copy_if(whole, std::back_inserter(unclear), IsUnclear);
  report["unclear"] = {{"jobs", unclear.size()}, {"gpu_hours", Sum(unclear, "missed_gpu_hours")}};
  report["slowdown"] = {{"median", Quantile(slowdowns, 0.5)},
                        {"p90", Quantile(slowdowns, 0.9)},
                        {"p99", Quantile(slowdowns, 0.99)},
                        {"max", Quantile(slowdowns, 1)}};
  report["by_slowdown"] = BySlowdown(slowdowns);
  report["gpu_hours"] = {{"traced", traced}, {"wasted", wasted}, {"wasted_share", Share(wasted, traced)}};
  report["by_cause"] = ByCause(whole, wasted);
  report["by_size"] = GroupsJson("gpus", BySize(whole));
  report["by_day"] = GroupsJson("day", ByDay(whole));
  report["nodes"] = Nodes(whole);
  report["worst_jobs"] = WorstJobs(whole);
  report["damaged_jobs"] = std::move(damaged);
  report["counters"] = Counters(whole);
  return report;
}

}  // namespace lockstep::explain
