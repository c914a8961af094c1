// What one test of a node found, and all of them together: the document of `lockstep probe`, which `compare` reads
// back.
//
// What a value means is said by its unit: of "GB/s" and "GFLOP/s" more is better, of "ms" less; "crc32c" is a checksum
// that is equal on all healthy machines; "errors" are counted and should be none. NaN: nothing could be measured.
// `ok` is what the node knows without its peers: wrong bits, a full disk, a neighbour that is not there.
//
//   {.name = "disk.write", .value = 1.2, .unit = "GB/s", .text = "64 MiB in /tmp, O_DIRECT"}
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::probe {

struct Measurement {
  std::string name{};  // "memory.all": the test, and what of it
  double value = NAN;
  std::string unit{};
  bool ok = true;
  std::string text{};
  std::string with{};  // address of the node at the other end, where it is about a link
};

// How values of a unit are compared over nodes.
enum class Kind : uint8_t { kMoreIsBetter, kLessIsBetter, kEqual, kNotCompared };
Kind KindOf(std::string_view unit);

struct NodeReport {
  std::string node{};     // host name, or as --node said
  std::string address{};  // as its neighbours call it; "" if they were not asked
  std::string isa{};      // bits are compared among nodes of one
  std::string type{};     // rates are compared among nodes of one: processors, cores, GPUs
  std::vector<Measurement> measurements{};
};

Json MeasurementJson(const Measurement& measurement);
Json ReportJson(const NodeReport& report);
absl::StatusOr<NodeReport> ParseReport(const Json& document, const std::string& where);
// Reports in one text: a document, or one a line. `file` stands in errors.
absl::StatusOr<std::vector<NodeReport>> ParseReports(const std::string& text, const std::string& file);

}  // namespace lockstep::probe
