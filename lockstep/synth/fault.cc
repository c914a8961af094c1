#include "lockstep/synth/fault.h"

#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/synth/fault_text.h"

namespace lockstep::synth {
namespace {

constexpr std::array kNames = {"worker", "transient_worker", "stage",       "sequence_length", "gc", "link",
                               "ring",   "fabric",           "data_loading"};
constexpr char kKeys[] = "dp, stage, factor, seconds, share, steps";

// "8-12", or "8".
bool ParseSteps(std::string_view text, Fault& fault) {
  const size_t dash = text.find('-');
  if (!ParseNumber(text.substr(0, dash), fault.first_step)) return false;
  fault.last_step = fault.first_step;
  return dash == std::string_view::npos || ParseNumber(text.substr(dash + 1), fault.last_step);
}

absl::Status Set(Fault& fault, std::string_view key, std::string_view value) {
  bool good = false;
  if (key == "dp") {
    good = ParseNumber(value, fault.dp);
  } else if (key == "stage") {
    good = ParseNumber(value, fault.stage);
  } else if (key == "factor") {
    good = ParseNumber(value, fault.factor) && fault.factor >= 0;
  } else if (key == "seconds") {
    good = ParseNumber(value, fault.seconds.value) && fault.seconds.value >= 0;
  } else if (key == "share") {
    good = ParseNumber(value, fault.share) && fault.share >= 0 && fault.share <= 1;
  } else if (key == "steps") {
    good = ParseSteps(value, fault) && fault.first_step >= 0 && fault.last_step >= fault.first_step;
  } else {
    return InvalidArgument("\"{}\": expected one of {}", key, kKeys);
  }
  return good ? absl::OkStatus() : InvalidArgument("{} can't be \"{}\"", key, value);
}

}  // namespace

const char* FaultKindName(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

absl::StatusOr<Fault> ParseFault(const std::string& text) { return ParseFaultText<Fault>(text, kNames, kKeys, Set); }

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
