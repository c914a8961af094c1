#include "lockstep/term/lines.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/term/text.h"

namespace lockstep::term {

double Number(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : std::nan("");
}

std::string Word(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? Clean(object[key].get_ref<const std::string&>()) : "";
}

double StepTime(const Json& rank) {
  const double step_time = Number(rank, "step_time_s");
  return step_time > 0 ? step_time : std::nan("");
}

double Slowest(const Json& ranks) {
  double slowest = std::nan("");
  for (const Json& rank : ranks) slowest = std::fmax(slowest, StepTime(rank));
  return slowest;
}

const char* ColourOf(const std::string& state) {
  if (state == "running" || state == "finished") return kGreen;
  return state == "starting" ? kYellow : kRed;
}

// The two of a status: none was told, or it is no number.
std::string LossText(const Json& status) {
  if (status.value("loss_is_finite", Json()) == false) return "nan";
  return Known(Number(status, "loss"), "{:.4f}");
}

// How it ended, too, once that is known.
std::string StateText(const Json& status) {
  const std::string verdict = Word(status, "verdict");
  return Word(status, "state") + (verdict.empty() ? "" : ": " + verdict);
}

std::string HeadLine(const Json& status) {
  const Json ettr = status.value("ettr", Json::object());
  const Json checkpoint = status.value("checkpoint", Json::object());
  return fmt::format("{}{}{}  {}  epoch {}  step {}  loss {}  ETTR {}  checkpoint {}", kBold, Word(status, "job"),
                     kPlain, StateText(status), Known(Number(status, "epoch"), "{:.0f}"),
                     Known(Number(status, "step"), "{:.0f}"), LossText(status),
                     Known(100 * Number(ettr, "cumulative"), "{:.1f} %"),
                     Known(Number(checkpoint, "step"), "of step {:.0f}"));
}

std::string RankLine(const Json& rank, double slowest, int width) {
  const std::string state = Word(rank, "state");
  const double step_time = StepTime(rank);
  return fmt::format("  rank {:<4} {}{:<12}{} step {:<7} {:>8}  {}", rank.value("rank", 0), ColourOf(state), state,
                     kPlain, rank.value("step", -1), Known(1000 * step_time, "{:.0f} ms"),
                     Strip(step_time, slowest, width));
}

std::string IncidentLine(const Json& incident) {
  const Json phases = incident.value("phases", Json::object());
  const bool open = incident.value("closed", Json()).is_null();
  return fmt::format("  {}#{} {}{}  detect {} decide {} restart {} recompute {}", open ? kRed : kCyan,
                     incident.value("id", 0), Word(incident, "headline"), kPlain,
                     Known(Number(phases, "detect_s"), "{:.3f} s"), Known(Number(phases, "decide_s"), "{:.3f} s"),
                     Known(Number(phases, "restart_s"), "{:.3f} s"), Known(Number(phases, "recompute_s"), "{:.3f} s"));
}

}  // namespace lockstep::term
