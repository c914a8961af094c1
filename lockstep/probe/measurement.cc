#include "lockstep/probe/measurement.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::probe {
namespace {

constexpr int kFormat = 1;

absl::Status TakeText(const Json& object, const char* key, const std::string& where, std::string& out) {
  if (!object.contains(key)) return absl::OkStatus();
  if (!object[key].is_string())
    return InvalidArgument("{}: {} must be a text, found {}", where, key, object[key].dump());
  out = object[key].get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<Measurement> ParseMeasurement(const Json& object, const std::string& where) {
  if (!object.is_object()) return InvalidArgument("{}: expected an object, found {}", where, object.dump());
  Measurement measurement;
  LS_RETURN_IF_ERROR(TakeText(object, "name", where, measurement.name));
  LS_RETURN_IF_ERROR(TakeText(object, "unit", where, measurement.unit));
  LS_RETURN_IF_ERROR(TakeText(object, "text", where, measurement.text));
  LS_RETURN_IF_ERROR(TakeText(object, "with", where, measurement.with));
  if (measurement.name.empty()) return InvalidArgument("{}: expected a name, found none", where);
  const Json value = object.value("value", Json()), ok = object.value("ok", Json());
  if (!value.is_null() && !value.is_number())
    return InvalidArgument("{}: value must be a number or null, found {}", where, value.dump());
  if (!ok.is_boolean()) return InvalidArgument("{}: ok must be true or false, found {}", where, ok.dump());
  if (value.is_number()) measurement.value = value.get<double>();
  measurement.ok = ok.get<bool>();
  return measurement;
}

}  // namespace

Kind KindOf(std::string_view unit) {
  if (unit == "GB/s" || unit == "GFLOP/s") return Kind::kMoreIsBetter;
  if (unit == "ms") return Kind::kLessIsBetter;
  return unit == "crc32c" ? Kind::kEqual : Kind::kNotCompared;
}

Json MeasurementJson(const Measurement& measurement) {
  Json value = std::isfinite(measurement.value) ? Json(measurement.value) : Json();
  if (std::isfinite(measurement.value) && measurement.value == std::floor(measurement.value) &&
      std::abs(measurement.value) < 1e15) {
    value = static_cast<int64_t>(measurement.value);
  }
  Json object = {{"name", measurement.name},
                 {"value", value},
                 {"unit", measurement.unit},
                 {"ok", measurement.ok},
                 {"text", measurement.text}};
  if (!measurement.with.empty()) object["with"] = measurement.with;
  return object;
}

Json ReportJson(const NodeReport& report) {
  Json measurements = Json::array();
  for (const Measurement& measurement : report.measurements) measurements.push_back(MeasurementJson(measurement));
  const bool ok = std::all_of(report.measurements.begin(), report.measurements.end(),
                              [](const Measurement& measurement) { return measurement.ok; });
  return {{"format", kFormat},           {"node", report.node}, {"address", report.address},
          {"isa", report.isa},           {"type", report.type}, {"ok", ok},
          {"measurements", measurements}};
}

absl::StatusOr<NodeReport> ParseReport(const Json& document, const std::string& where) {
  if (!document.is_object()) return InvalidArgument("{}: expected an object, found {}", where, document.type_name());
  if (document.value("format", Json()) != Json(kFormat))
    return InvalidArgument("{}: expected format {}, as lockstep probe --json writes, found {}", where, kFormat,
                           document.value("format", Json()).dump());
  NodeReport report;
  LS_RETURN_IF_ERROR(TakeText(document, "node", where, report.node));
  LS_RETURN_IF_ERROR(TakeText(document, "address", where, report.address));
  LS_RETURN_IF_ERROR(TakeText(document, "isa", where, report.isa));
  LS_RETURN_IF_ERROR(TakeText(document, "type", where, report.type));
  if (report.node.empty()) return InvalidArgument("{}: expected the name of a node, found none", where);
  const Json measurements = document.value("measurements", Json());
  if (!measurements.is_array()) return InvalidArgument("{}: expected a list of measurements, found none", where);
  for (size_t i = 0; i < measurements.size(); ++i) {
    LS_ASSIGN_OR_RETURN(Measurement measurement,
                        ParseMeasurement(measurements[i], fmt::format("{}: measurement {}", where, i + 1)));
    report.measurements.push_back(std::move(measurement));
  }
  return report;
}

absl::StatusOr<std::vector<NodeReport>> ParseReports(const std::string& text, const std::string& file) {
  std::vector<NodeReport> reports;
  if (const Json document = ParseJson(text); !document.is_discarded()) {
    LS_ASSIGN_OR_RETURN(NodeReport report, ParseReport(document, file));
    reports.push_back(std::move(report));
    return reports;
  }
  size_t begin = 0;
  for (int line = 1; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}:{}", file, line), here = text.substr(begin, end - begin);
    begin = end + 1;
    if (here.empty()) continue;
    const absl::StatusOr<Json> document = ReadJson(here);
    if (!document.ok())
      return InvalidArgument("{}: expected JSON as lockstep probe --json prints it: {}", where,
                             Message(document.status()));
    LS_ASSIGN_OR_RETURN(NodeReport report, ParseReport(*document, where));
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace lockstep::probe
