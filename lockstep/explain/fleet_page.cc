#include "lockstep/explain/fleet_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "lockstep/explain/html.h"

namespace lockstep::explain {

std::string FleetPage(const Json& report) {
  const Json &straggling = report.at("straggling"), &hours = report.at("gpu_hours"), &slowdown = report.at("slowdown");
  std::string html = HtmlBegin("What these jobs lost, and to what");
  html += fmt::format(
      "<p class=\"verdict\"><b>{} of {} jobs straggle</b>; {:.1f} % of {:.4g} traced GPU-hours ({:.4g}) are lost. "
      "S: median {:.3f}, 90 % below {:.3f}, at most {:.3f}. Of {} jobs it is unclear what "
      "they lose: their replays miss {:.4g} GPU-hours. {} jobs could not be read.</p>\n",
      straggling.at("jobs").get<size_t>(), report.at("jobs").get<size_t>(),
      100 * hours.at("wasted_share").get<double>(), hours.at("traced").get<double>(), hours.at("wasted").get<double>(),
      slowdown.at("median").get<double>(), slowdown.at("p90").get<double>(), slowdown.at("max").get<double>(),
      report.at("unclear").at("jobs").get<size_t>(), report.at("unclear").at("gpu_hours").get<double>(),
      report.at("damaged").get<size_t>());
  for (const auto& [key, title, bar] : {std::tuple("by_cause", "Lost to", "gpu_hours"),
                                        {"by_slowdown", "Jobs by slowdown", "jobs"},
                                        {"nodes", "Nodes that were named", "named_in"},
                                        {"by_size", "By GPUs of a job", "wasted_gpu_hours"},
                                        {"by_day", "By day", "wasted_gpu_hours"},
                                        {"worst_jobs", "Jobs that lost most", "wasted_gpu_hours"},
                                        {"damaged_jobs", "Jobs that could not be read", ""}})
    html += fmt::format("<h2>{}</h2>\n{}", title, HtmlTable(report.at(key), bar));
  return html + kHtmlEnd;
}

}  // namespace lockstep::explain
