#include "lockstep/synth/fault.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

namespace lockstep::synth {
namespace {

constexpr std::array kNames = {"worker", "transient_worker", "stage",       "sequence_length", "gc", "link",
                               "ring",   "fabric",           "data_loading"};
constexpr char kKeys[] = "dp, stage, factor, seconds, share, steps";

template <typename Number>
bool Parse(std::string_view text, Number& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size();
}

// "8-12", or "8".
bool ParseSteps(std::string_view text, Fault& fault) {
  const size_t dash = text.find('-');
  if (!Parse(text.substr(0, dash), fault.first_step)) return false;
  fault.last_step = fault.first_step;
  return dash == std::string_view::npos || Parse(text.substr(dash + 1), fault.last_step);
}

absl::Status Set(Fault& fault, std::string_view key, std::string_view value) {
  bool good = false;
  if (key == "dp") {
    good = Parse(value, fault.dp);
  } else if (key == "stage") {
    good = Parse(value, fault.stage);
  } else if (key == "factor") {
    good = Parse(value, fault.factor) && fault.factor >= 0;
  } else if (key == "seconds") {
    good = Parse(value, fault.seconds.value) && fault.seconds.value >= 0;
  } else if (key == "share") {
    good = Parse(value, fault.share) && fault.share >= 0 && fault.share <= 1;
  } else if (key == "steps") {
    good = ParseSteps(value, fault) && fault.first_step >= 0 && fault.last_step >= fault.first_step;
  } else {
    return InvalidArgument("\"{}\": expected one of {}", key, kKeys);
  }
  return good ? absl::OkStatus() : InvalidArgument("{} can't be \"{}\"", key, value);
}

}  // namespace

const char* FaultKindName(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<Fault> ParseFault(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string_view name = std::string_view(text).substr(0, colon);
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return InvalidArgument("fault \"{}\": expected one of {}", name, fmt::join(kNames, ", "));
  Fault fault;
  fault.kind = static_cast<FaultKind>(found - kNames.begin());
  std::string_view rest = colon == std::string::npos ? std::string_view() : std::string_view(text).substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const size_t equal = one.find('=');
    if (equal == std::string_view::npos)
      return InvalidArgument("fault {}: \"{}\" is no key=value; keys are {}", name, one, kKeys);
    const absl::Status set = Set(fault, one.substr(0, equal), one.substr(equal + 1));
    if (!set.ok()) return InvalidArgument("fault {}: {}", name, Message(set));
  }
  return fault;
}

Json FaultJson(const Fault& fault) {
  Json json = {{"kind", FaultKindName(fault.kind)},
               {"dp", fault.dp},
               {"stage", fault.stage},
               {"factor", fault.factor},
               {"share", fault.share},
               {"seconds", fault.seconds.value}};
  if (fault.last_step != std::numeric_limits<int>::max()) json["steps"] = {fault.first_step, fault.last_step};
  return json;
}

}  // namespace lockstep::synth
