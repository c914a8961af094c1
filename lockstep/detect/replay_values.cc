#include "lockstep/detect/replay_values.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"

namespace lockstep::detect {
namespace {

bool IsReport(const nlohmann::ordered_json& line) {
  if (!line.is_object() || !line.contains("values") || !line["values"].is_object()) return false;
  const auto& values = line["values"];
  return std::all_of(values.begin(), values.end(), [](const auto& value) {
    return value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_number_integer();
  });
}

}  // namespace

absl::StatusOr<std::vector<ReplayValue>> ParseReplayReport(std::string_view text, int rank, int ranks) {
  std::vector<ReplayValue> values;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const Json json = ParseJson(line);
    if (!IsReport(json))
      return DataLoss("rank {}: expected a report of values, found \"{}\"", rank, line.substr(0, 80));
    for (const auto& [name, value] : json["values"].items()) {
      values.push_back({IntegerAt(json, "step", 0), name, rank, ranks, TextAt(json, "scope"),
                        value[0].get<std::string>(), value[1].get<int64_t>()});
    }
  }
  return values;
}

ReplayVotes::Key ReplayVotes::KeyOf(const ReplayValue& value) {
  if (value.scope == "everywhere") return {value.step, value.name, -1, -1};
  if (value.scope == "group") return {value.step, value.name, -1, value.ranks};
  return {value.step, value.name, value.rank, value.ranks};
}

void ReplayVotes::Count(const std::vector<ReplayValue>& run, int votes) {
  for (const ReplayValue& value : run) votes_[KeyOf(value)][value.digest] += votes;
}

ReplayVotes::Standing ReplayVotes::StandingOf(const ReplayValue& value) const {
  if (value.not_finite > 0) return Standing::kWrong;
  const auto& digests = votes_.at(KeyOf(value));
  const int same = digests.at(value.digest);
  int most = 0;  // of another value
  for (const auto& [digest, count] : digests) {
    if (digest != value.digest) most = std::max(most, count);
  }
  if (same == most) return Standing::kTie;
  return same > most ? Standing::kRule : Standing::kWrong;
}

std::string ReplayVotes::Text(const ReplayValue& value) const {
  const std::string what = fmt::format("{} of step {}", value.name, value.step);
  if (value.not_finite > 0) return fmt::format("{} has {} values that are NaN or infinite", what, value.not_finite);
  int all = 0;
  const auto& digests = votes_.at(KeyOf(value));
  for (const auto& [digest, count] : digests) all += count;
  const int others = all - digests.at(value.digest);
  if (StandingOf(value) == Standing::kTie)
    return fmt::format("{}: {} of {} differ, and none is the rule", what, others, all);
  return fmt::format("{} differs from {} of {}", what, others, all);
}

std::optional<int64_t> ReplayVotes::FirstStep(const std::vector<ReplayValue>& run, Standing standing) const {
  std::optional<int64_t> first;
  for (const ReplayValue& value : run) {
    if (StandingOf(value) == standing && (!first || value.step < *first)) first = value.step;
  }
  return first;
}

std::vector<Objection> ReplayVotes::Objections(const std::vector<ReplayValue>& run, int64_t step,
                                               Standing standing) const {
  std::vector<Objection> objections;
  for (const ReplayValue& value : run) {
    if (value.step == step && StandingOf(value) == standing) objections.push_back({value.rank, Text(value)});
  }
  return objections;
}

std::vector<std::vector<Objection>> ReplayVotes::Judge(const std::vector<std::vector<ReplayValue>>& runs) {
  std::vector<std::vector<Objection>> objections(runs.size());
  for (const auto& run : runs) Count(run, 1);
  for (;;) {
    std::map<int64_t, std::vector<size_t>> wrong;  // by step; the first counts
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!objections[i].empty()) continue;
      if (const auto step = FirstStep(runs[i], Standing::kWrong)) wrong[*step].push_back(i);
    }
    if (wrong.empty()) break;
    const auto& [step, those] = *wrong.begin();
    for (const size_t i : those) objections[i] = Objections(runs[i], step, Standing::kWrong);
    for (const size_t i : those) Count(runs[i], -1);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!objections[i].empty()) continue;
    if (const auto step = FirstStep(runs[i], Standing::kTie))
      objections[i] = Objections(runs[i], *step, Standing::kTie);
  }
  return objections;
}

}  // namespace lockstep::detect
