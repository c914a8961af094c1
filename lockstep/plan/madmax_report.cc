#include "lockstep/plan/madmax_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/csv.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/number.h"
#include "lockstep/plan/madmax.h"

namespace lockstep::plan {
namespace {

constexpr double kLeastExposed = 1e-3;  // of an iteration

struct Configs {
  std::map<std::string, Json> models;  // by name
  Json systems;                        // by path
};

absl::StatusOr<Configs> ReadConfigs(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Json all = ParseJson(text);
  if (!all.is_object() || !all.contains("models") || !all.contains("systems") || !all["models"].is_object() ||
      !all["systems"].is_object()) {
    return InvalidArgument("{}: no JSON object with \"models\" and \"systems\"", path);
  }
  Configs configs;
  configs.systems = all["systems"];
  for (const Json& model : all["models"])
    if (model.is_object() && model.contains("name") && model["name"].is_string())
      configs.models[model["name"].get<std::string>()] = model;
  return configs;
}

absl::StatusOr<double> Number(std::string_view text, const char* column) {
  const auto value = WholeNumber<double>(text);
  if (!value || !std::isfinite(*value)) return InvalidArgument("column {} is \"{}\"; expected a number", column, text);
  return *value;
}

absl::StatusOr<MadmaxTimes> Compute(const Configs& configs, const CsvTable& table, const CsvRow& row) {
  const std::string model(table.Field(row, "model")), system(table.Field(row, "system_cfg"));
  const auto known = configs.models.find(model);
  if (known == configs.models.end()) return NotFound("there is no model {} in the configurations", model);
  if (!configs.systems.contains(system)) return NotFound("there is no system {} in the configurations", system);
  const std::string_view task_text = table.Field(row, "task");
  const Json task = ParseJson(task_text);
  if (!task.is_object()) return InvalidArgument("column task is no JSON object");
  const auto variant = MadmaxVariantOf(table.Field(row, "variant"));
  if (!variant) return InvalidArgument("column variant is \"{}\", which is none", table.Field(row, "variant"));
  return PredictMadmax(known->second, configs.systems.at(system), task, *variant);
}

struct Errors {
  double iteration = 0, exposed = 0;
  double worst() const { return std::max(iteration, exposed); }
};

}  // namespace

absl::StatusOr<Json> CompareMadmax(const std::string& configs_path, const std::string& golden) {
  LS_ASSIGN_OR_RETURN(const Configs configs, ReadConfigs(configs_path));
  LS_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(golden));
  for (const char* column : {"model", "system_cfg", "task", "variant", "iter_ms", "exposed_ms"})
    if (!table.Column(column)) return InvalidArgument("{}: there is no column {}", golden, column);
  if (table.rows.empty()) return InvalidArgument("{}: there is no row to compare with", golden);
  Errors most;
  Json worst, skipped = Json::array();
  int rows = 0;
  for (const CsvRow& row : table.rows) {
    const absl::StatusOr<MadmaxTimes> times = Compute(configs, table, row);
    auto iteration = Number(table.Field(row, "iter_ms"), "iter_ms");
    if (iteration.ok() && *iteration <= 0)
      iteration = InvalidArgument("column iter_ms is {}; expected more than 0", *iteration);
    const auto exposed = Number(table.Field(row, "exposed_ms"), "exposed_ms");
    const absl::Status why = !times.ok() ? times.status() : !iteration.ok() ? iteration.status() : exposed.status();
    if (!why.ok()) {
      skipped.push_back({{"row", row.line}, {"why", Message(why)}});
      continue;
    }
    ++rows;
    const double ours_ms = 1e3 * times->iteration.value, ours_exposed_ms = 1e3 * times->exposed().value;
    const Errors errors{
        std::abs(ours_ms - *iteration) / *iteration,
        std::abs(ours_exposed_ms - *exposed) / std::max(std::abs(*exposed), kLeastExposed * *iteration)};
    if (worst.is_null() || errors.worst() > most.worst()) {
      worst = {{"row", row.line},
               {"model", table.Field(row, "model")},
               {"system", table.Field(row, "system_cfg")},
               {"iter_ms", {ours_ms, *iteration}},
               {"exposed_ms", {ours_exposed_ms, *exposed}}};
    }
    most = {std::max(most.iteration, errors.iteration), std::max(most.exposed, errors.exposed)};
  }
  return Json{{"rows", rows},
              {"max_rel_iter_ms", rows > 0 ? Json(most.iteration) : Json()},
              {"max_rel_exposed_ms", rows > 0 ? Json(most.exposed) : Json()},
              {"worst", worst},
              {"skipped", skipped}};
}

}  // namespace lockstep::plan
