#include "lockstep/detect/replay_values.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_at.h"

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
    const Json json = Json::parse(line, nullptr, false);
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

void ReplayVotes::Add(const ReplayValue& value) { ++votes_[KeyOf(value)][value.digest]; }

std::optional<std::string> ReplayVotes::Objection(const ReplayValue& value) const {
  if (value.not_finite > 0)
    return fmt::format("{} of step {} has {} values that are NaN or infinite", value.name, value.step,
                       value.not_finite);
  const auto& digests = votes_.at(KeyOf(value));
  int all = 0, most = 0;
  for (const auto& [digest, count] : digests) {
    all += count;
    if (digest != value.digest) most = std::max(most, count);
  }
  const int same = digests.at(value.digest);
  if (same > most) return std::nullopt;
  if (same == most)
    return fmt::format("{} of step {}: {} of {} differ, and none is the rule", value.name, value.step, all - same, all);
  return fmt::format("{} of step {} differs from {} of {}", value.name, value.step, most, all);
}

}  // namespace lockstep::detect
