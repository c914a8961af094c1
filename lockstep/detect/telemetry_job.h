// For tests: simulated jobs (synth/telemetry.h), and what is found in them, as text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "lockstep/incident/incident.h"
#include "lockstep/synth/telemetry.h"

namespace lockstep::detect {

// Faults as `simulate telemetry` takes them, with blanks between them.
inline std::vector<trace::TrailSnapshot> Take(const synth::TelemetryShape& shape, const std::string& faults,
                                              double seconds, uint64_t seed = 1) {
  const std::vector<std::string> texts = absl::StrSplit(faults, ' ', absl::SkipEmpty());
  std::vector<synth::TelemetryFault> parsed;
  parsed.reserve(texts.size());
  for (const std::string& text : texts) parsed.push_back(synth::ParseTelemetryFault(text).value());
  synth::Telemetry job = synth::Telemetry::Create(shape, parsed, seed).value();
  job.Run(Seconds{seconds});
  return job.Take();
}

inline std::string SlowRanks(int from, int to, double factor) {
  std::string faults;
  for (int rank = from; rank < to; ++rank) faults += fmt::format("slow_rank:rank={},factor={} ", rank, factor);
  return faults;
}

inline double StepsPerSecond(const std::vector<trace::TrailSnapshot>& snapshots) {
  std::vector<int64_t> ends;  // of what all ranks do once in a step
  for (const ls_record& record : snapshots[0].ended)
    if (record.kind == LS_RECORD_OP && record.body.op.communicator == 0) ends.push_back(record.time_ns);
  return static_cast<double>(ends.size() - 1) / ToSeconds(Nanos{ends.back() - ends.front()}).value;
}

inline std::vector<std::string> NamesOf(const incident::Finding& finding) {
  std::vector<std::string> names;
  for (const incident::Suspect& suspect : finding.suspects) names.push_back(suspect.name);
  return names;
}

inline std::string TextOf(const std::vector<incident::Finding>& findings) {
  std::string text;
  for (const incident::Finding& finding : findings) {
    text += std::string(incident::SyndromeName(finding.syndrome)) + (finding.certain ? "!" : "?");
    for (const incident::Suspect& suspect : finding.suspects) text += " " + suspect.name;
    for (const incident::Suspect& suspect : finding.ambiguous_with) text += " or " + suspect.name;
    for (const std::string& line : finding.evidence) text += "\n    " + line;
    text += "\n";
  }
  return text;
}

}  // namespace lockstep::detect
