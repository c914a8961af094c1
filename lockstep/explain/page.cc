#include "lockstep/explain/page.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/explain/heatmap.h"
#include "lockstep/explain/html.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::explain {
namespace {

// The workers of the report as a matrix: stages are rows.
Heatmap WorkersMap(const Json& report) {
  Heatmap map{"Slowdown of each worker (S_w)", "DP rank", "PP rank", {}, {}, {}};
  int dps = 0, stages = 0;
  for (const Json& worker : report.at("by_worker")) {
    dps = std::max(dps, worker.at("dp").get<int>() + 1);
    stages = std::max(stages, worker.at("stage").get<int>() + 1);
  }
  for (int dp = 0; dp < dps; ++dp) map.columns.push_back(std::to_string(dp));
  for (int stage = 0; stage < stages; ++stage) map.rows.push_back(std::to_string(stage));
  map.values.assign(map.columns.size() * map.rows.size(), std::numeric_limits<double>::quiet_NaN());
  for (const Json& worker : report.at("by_worker"))
    map.values[worker.at("stage").get<size_t>() * map.columns.size() + worker.at("dp").get<size_t>()] =
        worker.at("slowdown").get<double>();
  return map;
}

Heatmap StepsMap(const Json& steps) {
  Heatmap map{"Slowdown of each data-parallel rank, step by step (S_dp)", "step", "DP rank", {}, {}, {}};
  const size_t ranks = steps.empty() ? 0 : steps.front().at("by_dp_rank").size();
  for (size_t rank = 0; rank < ranks; ++rank) map.rows.push_back(std::to_string(rank));
  for (const Json& step : steps) map.columns.push_back(std::to_string(step.at("step").get<int64_t>()));
  map.values.resize(ranks * map.columns.size());
  for (size_t column = 0; column < map.columns.size(); ++column)
    for (size_t rank = 0; rank < ranks; ++rank)
      map.values[rank * map.columns.size() + column] = steps[column].at("by_dp_rank")[rank].get<double>();
  return map;
}

LineChart StepsChart(const Json& steps) {
  LineChart chart{"Slowdown of each step (S)", "step", "S", {}, {}};
  for (const Json& step : steps) {
    chart.labels.push_back(std::to_string(step.at("step").get<int64_t>()));
    chart.values.push_back(step.at("slowdown").get<double>());
  }
  return chart;
}

std::string CausesTable(const Json& report) {
  if (report.at("causes").empty()) return "<p>No cause stands out.</p>\n";
  std::string html =
      "<table><tr><th>cause</th><th>who</th><th class=\"number\">gain per step</th><th class=\"number\">of the "
      "loss</th><th>evidence</th></tr>\n";
  for (const Json& cause : report.at("causes")) {
    std::string who, evidence;
    for (const Json& suspect : cause.at("suspects")) who += Escaped(SuspectText(suspect)) + "<br>";
    for (const Json& line : cause.at("evidence")) evidence += Escaped(line.get<std::string>()) + "<br>";
    html += fmt::format(
        "<tr><td><b>{}</b></td><td>{}</td><td class=\"number\">{:.3f} s</td><td class=\"number\">{:.0f} "
        "%</td><td>{}</td></tr>\n",
        Escaped(cause.at("cause").get<std::string>()), who.empty() ? "the whole job" : who,
        cause.at("gain_s").get<double>(), 100 * cause.at("share").get<double>(), evidence);
  }
  return html + fmt::format("</table>\n<p class=\"note\">Left unexplained: {:.0f} % of the loss.</p>\n",
                            100 * report.at("unexplained").get<double>());
}

// {name: S} with bars that begin at 1.
std::string SplitTable(const Json& split) {
  constexpr double kWidest = 0.5;  // above 1
  constexpr size_t kMost = 32;
  std::string html = "<table>";
  size_t shown = 0;
  for (const auto& [name, value] : split.items()) {
    if (shown++ == kMost) break;
    const double slowdown = value.get<double>();
    html += fmt::format("<tr><td>{}</td><td class=\"number\">{:.3f}</td>{}</tr>\n", Escaped(name), slowdown,
                        BarCell((slowdown - 1) / kWidest));
  }
  if (split.size() > kMost) html += fmt::format("<tr><td class=\"note\">and {} more</td></tr>", split.size() - kMost);
  return html + "</table>\n";
}

std::string Headline(const Json& report) {
  return fmt::format(
      "<p class=\"verdict\"><b>{}</b>: S = {:.3f}. A step takes {:.3f} s, ideal would be {:.3f} s; {:.1f} % of the GPU "
      "time ({:.3g} GPU-hours in {} traced steps) is lost.</p>\n",
      Escaped(report.at("verdict").get<std::string>()), report.at("slowdown").get<double>(),
      report.at("step_s").at("measured").get<double>(), report.at("step_s").at("ideal").get<double>(),
      100 * report.at("wasted").at("share").get<double>(), report.at("wasted").at("gpu_hours").get<double>(),
      report.at("steps").get<size_t>());
}

std::string Page(const Json& report, const Json& steps) {
  const auto job = report.at("job").get<std::string>();
  std::string html = HtmlBegin((job.empty() ? "Training job" : job) + ": why is it slow, and what would it gain");
  html += Headline(report);
  for (const Json& note : report.value("notes", Json::array()))
    html += "<p class=\"note\">" + Escaped(note.get<std::string>()) + "</p>\n";
  if (report.contains("left_out"))
    html += "<p class=\"note\">" + Escaped(report.at("left_out").get<std::string>()) + "</p>\n";
  html += "<h2>Causes</h2>\n" + CausesTable(report);
  html += "<h2>Workers</h2>\n" + HeatmapSvg(WorkersMap(report));
  html += "<h2>Steps</h2>\n" + LineChartSvg(StepsChart(steps)) + HeatmapSvg(StepsMap(steps));
  for (const auto& [key, title] :
       {std::pair("by_optype", "By op type"), {"by_stage", "By stage"}, {"by_dp_rank", "By data-parallel rank"}})
    html += fmt::format("<h2>{}</h2>\n<p class=\"note\">S with only these ops as measured, all others ideal.</p>\n{}",
                        title, SplitTable(report.at(key)));
  const Json& path = report.at("critical_path");
  html +=
      "<h2>Critical path</h2>\n<p class=\"note\">Of the chain of ops that led to the end of a step, by worker.</p>\n" +
      HtmlTable(path.at("by_worker"), "share");
  if (!report.at("counters").empty()) {
    html += "<h2>Left out or mended</h2>\n<table>";
    for (const auto& [name, count] : report.at("counters").items())
      html += fmt::format("<tr><td>{}</td><td class=\"number\">{}</td></tr>\n", Escaped(name), count.get<uint64_t>());
    html += "</table>\n";
  }
  return html + kHtmlEnd;
}

}  // namespace

Json StepsReport(const WhatIf& analysis) {
  const Split& dps = analysis.Blocking(By::kDp);
  Json steps = Json::array();
  for (size_t step = 0; step < analysis.steps().size(); ++step)
    steps.push_back({{"step", analysis.steps()[step]},
                     {"measured_s", analysis.measured()[step]},
                     {"without_delays_s", analysis.nodelay()[step]},
                     {"ideal_s", analysis.ideal()[step]},
                     {"slowdown", analysis.nodelay()[step] / analysis.ideal()[step]},
                     {"by_dp_rank", dps.per_step[step]}});
  return steps;
}

absl::Status WritePage(const std::string& directory, const Json& report, const Json& steps) {
  LS_RETURN_IF_ERROR(MakeDirectory(directory));
  for (const auto& [name, text] : {std::pair("report.json", RenderJson(report)),
                                   {"steps.json", RenderJson(steps)},
                                   {"heatmap-workers.svg", HeatmapSvg(WorkersMap(report))},
                                   {"heatmap-steps.svg", HeatmapSvg(StepsMap(steps))},
                                   {"index.html", Page(report, steps)}})
    LS_RETURN_IF_ERROR(trace::WriteText(directory + "/" + name, text));
  return absl::OkStatus();
}

}  // namespace lockstep::explain
