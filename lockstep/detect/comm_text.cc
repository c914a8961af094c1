#include "lockstep/detect/comm_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep::detect {

using trace::CommOp;
using trace::Direction;

std::string NameOf(const trace::Communicator& communicator) {
  return communicator.description.empty() ? fmt::format("communicator {}", communicator.name)
                                          : fmt::format("{} ({})", communicator.description, communicator.name);
}

std::string NameOf(const trace::CommLog& log, const CommOp& op) {
  const trace::Communicator& communicator = log.communicators[op.communicator];
  if (op.direction == Direction::kCollective)
    return fmt::format("{} {} of {}", log.functions[op.function], op.sequence, NameOf(communicator));
  if (op.peer < 0)
    return fmt::format("a transfer ({}) with a rank that is not known, in {}", log.functions[op.function],
                       NameOf(communicator));
  return fmt::format("a {} rank {} in {}", op.direction == Direction::kSend ? "send to" : "receive from", op.peer,
                     NameOf(communicator));
}

std::string RanksText(const std::vector<int>& ranks) {
  constexpr size_t kMost = 16;
  const size_t shown = std::min(kMost, ranks.size());
  const std::string text =
      fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks",
                  fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown == ranks.size() ? text : fmt::format("{} and {} more", text, ranks.size() - shown);
}

std::string WaitingText(const std::vector<int>& ranks) {
  return RanksText(ranks) + (ranks.size() == 1 ? " waits" : " wait");
}

std::string StacksText(const std::vector<int>& ranks) {
  return fmt::format("stacks of {}, and whether they change", RanksText(ranks));
}

std::vector<incident::Suspect> Suspects(const std::vector<int>& ranks) {
  std::vector<incident::Suspect> suspects;
  suspects.reserve(ranks.size());
  for (const int rank : ranks) suspects.push_back(incident::SuspectRank(RankId(rank)));
  return suspects;
}

}  // namespace lockstep::detect
