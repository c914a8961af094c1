#include "lockstep/synth/telemetry_fault.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/synth/fault_text.h"

namespace lockstep::synth {
namespace {

constexpr std::array kForms = {FaultForm{"slow_rank", "rank, factor, from, until, every"},
                               FaultForm{"slow_link", "rank, peer, port, factor, from, until, every"},
                               FaultForm{"slow_sender", "rank, port, factor, from, until, every"},
                               FaultForm{"slow_receiver", "rank, port, factor, from, until, every"},
                               FaultForm{"slow_block", "rank, peer, port, factor, from, until, every"},
                               FaultForm{"slow_block_out", "rank, peer, port, factor, from, until, every"},
                               FaultForm{"slow_block_in", "rank, peer, port, factor, from, until, every"},
                               FaultForm{"stopped", "rank, from, until, every"},
                               FaultForm{"lost_message", "rank, from, until, every"},
                               FaultForm{"deadlock", "rank, from, until, every"},
                               FaultForm{"mismatch", "rank, from, until, every"},
                               FaultForm{"skipped", "rank, from, until, every"},
                               FaultForm{"gc", "share, seconds, from, until, every"},
                               FaultForm{"checkpoint", "seconds, from, until, every"},
                               FaultForm{"evaluation", "seconds, from, until, every"},
                               FaultForm{"lengths", "factor, from, until, every"},
                               FaultForm{"warm_up", "factor"},
                               FaultForm{"pause", "seconds, from"},
                               FaultForm{"rotating", "factor, from, until, every"},
                               FaultForm{"everybody", "factor, from, until, every"}};

bool ParseSeconds(std::string_view text, Seconds& value) { return ParseNumber(text, value.value) && value.value >= 0; }

bool Set(TelemetryFault& fault, std::string_view key, std::string_view value) {
  if (key == "rank") return ParseNumber(value, fault.rank);
  if (key == "peer") return ParseNumber(value, fault.peer);
  if (key == "port") return ParseNumber(value, fault.port);
  if (key == "factor") return ParseNumber(value, fault.factor) && fault.factor >= 0;
  if (key == "seconds") return ParseSeconds(value, fault.seconds);
  if (key == "share") return ParseNumber(value, fault.share) && fault.share >= 0 && fault.share <= 1;
  if (key == "from") return ParseSeconds(value, fault.from);
  if (key == "until") return ParseSeconds(value, fault.until);
  return ParseSeconds(value, fault.every);
}

}  // namespace

const char* TelemetryFaultName(TelemetryFaultKind kind) { return kForms[static_cast<size_t>(kind)].name.data(); }

bool TelemetryFault::IsOn(Seconds now) const {
  if (now < from || now >= until) return false;
  return every.value <= 0 || std::fmod(now.value - from.value, every.value) < every.value / 2;
}

absl::StatusOr<TelemetryFault> ParseTelemetryFault(const std::string& text) {
  return ParseFaultText<TelemetryFault>(text, kForms, Set);
}

Json TelemetryFaultJson(const TelemetryFault& fault) {
  Json json = {{"kind", TelemetryFaultName(fault.kind)},
               {"rank", fault.rank},
               {"factor", fault.factor},
               {"seconds", fault.seconds.value},
               {"share", fault.share},
               {"from", fault.from.value},
               {"every", fault.every.value}};
  if (fault.peer >= 0) json["peer"] = fault.peer;
  if (fault.port >= 0) json["port"] = fault.port;
  if (std::isfinite(fault.until.value)) json["until"] = fault.until.value;
  return json;
}

}  // namespace lockstep::synth
