#include <fmt/format.h>

#include <array>

#include "lockstep/control/simulation.h"
#include "lockstep/control/simulation_promises.h"

namespace lockstep::control {

std::string EventText(const EventBody& body) {
  std::string text = TypeName(body);
  std::visit(
      [&](const auto& each) {
        if constexpr (requires { each.epoch; }) text += fmt::format(" of epoch {}", each.epoch.value());
      },
      body);
  return text;
}

const char* MutantName(Mutant mutant) {
  constexpr std::array<const char*, kMutants + 1> kNames = {
      "none",           "no fence",           "stale commands",   "commit early",
      "stale writer",   "first node stopped", "any node's point", "no budget",
      "forget pending", "spawn twice",        "never caught up",  "trust the journal",
      "never dead",     "one look",           "never back",       "never gone",
      "gone runs on",   "deaf to a stop",     "stop once",        "a stop per node",
      "no cap",         "no floor",           "no dry run",       "one alert",
      "wrong node",     "probe forever",      "stop forever",     "await forever",
      "commit unkept",  "mixed code",         "replay forever",   "replay of another",
      "end forever",    "never unseen",       "blame others",     "deaf to standbys",
      "no least",       "vacant runs on",     "old numbers",      "all alike"};
  return kNames[static_cast<size_t>(mutant)];
}

}  // namespace lockstep::control
