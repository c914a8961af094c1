#include "lockstep/synth/fault.h"

#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/synth/fault_text.h"

namespace lockstep::synth {
namespace {

constexpr std::array kForms = {
    FaultForm{"worker", "dp, stage, factor"}, FaultForm{"transient_worker", "dp, stage, factor, steps"},
    FaultForm{"stage", "stage, factor"},      FaultForm{"sequence_length", "factor"},
    FaultForm{"gc", "share, seconds"},        FaultForm{"link", "dp, stage, seconds"},
    FaultForm{"ring", "stage, factor"},       FaultForm{"fabric", "factor, steps"},
    FaultForm{"data_loading", "dp, seconds"}};

// "8-12", or "8".
bool ParseSteps(std::string_view text, Fault& fault) {
  const size_t dash = text.find('-');
  if (!ParseNumber(text.substr(0, dash), fault.first_step)) return false;
  fault.last_step = fault.first_step;
  return dash == std::string_view::npos || ParseNumber(text.substr(dash + 1), fault.last_step);
}

bool Set(Fault& fault, std::string_view key, std::string_view value) {
  if (key == "dp") return ParseNumber(value, fault.dp);
  if (key == "stage") return ParseNumber(value, fault.stage);
  if (key == "factor") return ParseNumber(value, fault.factor) && fault.factor >= 0;
  if (key == "seconds") return ParseNumber(value, fault.seconds.value) && fault.seconds.value >= 0;
  if (key == "share") return ParseNumber(value, fault.share) && fault.share >= 0 && fault.share <= 1;
  return ParseSteps(value, fault) && fault.first_step >= 0 && fault.last_step >= fault.first_step;
}

}  // namespace

const char* FaultKindName(FaultKind kind) { return kForms[static_cast<size_t>(kind)].name.data(); }

absl::StatusOr<Fault> ParseFault(const std::string& text) {
  LS_ASSIGN_OR_RETURN(const Fault fault, ParseFaultText<Fault>(text, kForms, Set));
  // What CheckTimes says of times and jitter: beyond, rows are infinite.
  const double most_seconds = 1e5, most = fault.kind == FaultKind::kSequenceLength ? 10 : 1e5;
  if (fault.factor > most || fault.seconds.value > most_seconds)
    return InvalidArgument("fault {}: factor is {:g} and seconds {:g}, expected {:g} and {:g} at most",
                           FaultKindName(fault.kind), fault.factor, fault.seconds.value, most, most_seconds);
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
