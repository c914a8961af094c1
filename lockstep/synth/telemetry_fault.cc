#include "lockstep/synth/telemetry_fault.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/synth/fault_text.h"

namespace lockstep::synth {
namespace {

constexpr std::array kNames = {"slow_rank",      "slow_link",     "slow_sender", "slow_receiver", "slow_block",
                               "slow_block_out", "slow_block_in", "stopped",     "lost_message",  "deadlock",
                               "mismatch",       "skipped",       "gc",          "checkpoint",    "evaluation",
                               "lengths",        "warm_up",       "pause",       "rotating",      "everybody"};
constexpr char kKeys[] = "rank, peer, port, factor, seconds, share, from, until, every";

bool ParseSeconds(std::string_view text, Seconds& value) { return ParseNumber(text, value.value) && value.value >= 0; }

absl::Status Set(TelemetryFault& fault, std::string_view key, std::string_view value) {
  bool good = false;
  if (key == "rank") {
    good = ParseNumber(value, fault.rank);
  } else if (key == "peer") {
    good = ParseNumber(value, fault.peer);
  } else if (key == "port") {
    good = ParseNumber(value, fault.port);
  } else if (key == "factor") {
    good = ParseNumber(value, fault.factor) && fault.factor >= 0;
  } else if (key == "seconds") {
    good = ParseSeconds(value, fault.seconds);
  } else if (key == "share") {
    good = ParseNumber(value, fault.share) && fault.share >= 0 && fault.share <= 1;
  } else if (key == "from") {
    good = ParseSeconds(value, fault.from);
  } else if (key == "until") {
    good = ParseSeconds(value, fault.until);
  } else if (key == "every") {
    good = ParseSeconds(value, fault.every);
  } else {
    return InvalidArgument("\"{}\": expected one of {}", key, kKeys);
  }
  return good ? absl::OkStatus() : InvalidArgument("{} can't be \"{}\"", key, value);
}

}  // namespace

const char* TelemetryFaultName(TelemetryFaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

bool TelemetryFault::IsOn(Seconds now) const {
  if (now < from || now >= until) return false;
  return every.value <= 0 || std::fmod(now.value - from.value, every.value) < every.value / 2;
}

absl::StatusOr<TelemetryFault> ParseTelemetryFault(const std::string& text) {
  return ParseFaultText<TelemetryFault>(text, kNames, kKeys, Set);
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
