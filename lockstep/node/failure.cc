#include "lockstep/node/failure.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <tuple>

#include "lockstep/base/host.h"

namespace lockstep::node {
namespace {

std::string LocalTime(Nanos wall) {
  const time_t seconds = wall.value / 1'000'000'000;
  tm parts{};
  localtime_r(&seconds, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%d_%H:%M:%S", &parts);
  return text;
}

std::string MessageOf(const control::RankExited& event, int64_t pid) {
  if (event.exception) {
    const control::ExceptionInfo& exception = *event.exception;
    const std::string where = exception.where.empty() ? "" : fmt::format(" (at {})", exception.where);
    return fmt::format("{}{}{}{}", exception.type, exception.message.empty() ? "" : ": ", exception.message, where);
  }
  if (control::IsClean(event.status)) return "none: it ended while others still trained";
  if (event.status.signal == 0) return fmt::format("no exception was noted (exit code {})", event.status.code);
  const char* name = sigabbrev_np(event.status.signal);
  return fmt::format("Signal {} (SIG{}) received by PID {}", event.status.signal, name ? name : "?", pid);
}

auto Order(const control::RankExited& event) {
  return std::tuple(control::IsClean(event.status), control::MayFollowFromLoss(event), event.exited.value);
}

}  // namespace

void FirstFailure::Add(const control::RankExited& event, int64_t pid, int restart_count, Nanos at, Nanos wall) {
  if (!exits_.empty() && exits_.front().event.epoch != event.epoch) exits_.clear();
  exits_.push_back({event, pid, restart_count, wall - (at - event.exited)});
}

const FirstFailure::Exit* FirstFailure::First(const std::vector<RankId>& blamed) const {
  const auto order = [&](const Exit& exit) {
    return std::tuple(std::ranges::find(blamed, exit.event.rank) == blamed.end(), Order(exit.event));
  };
  const auto first = std::ranges::min_element(exits_, {}, order);
  if (first == exits_.end()) return nullptr;
  const bool failed = !control::IsClean(first->event.status) || !std::get<0>(order(*first));
  return failed ? &*first : nullptr;
}

std::string FirstFailure::Table(const agent::RunSpec& spec, EpochId epoch, const std::vector<RankId>& blamed) const {
  const Exit* first = First(blamed);
  if (first == nullptr || first->event.epoch != epoch) return "";
  const control::RankExited& event = first->event;
  const int rank = event.rank.value(), local = rank - spec.place.first_rank;
  const std::string error_file = agent::TorchErrorPath(spec, event.epoch.value(), first->restart_count, local);
  const char* here = spec.place.nodes > 1 ? " on this node" : "";
  const std::string title = fmt::format("{} FAILED, first{} by rank {}", spec.command.front(), here, rank);
  const std::string rule(60, '=');
  return fmt::format(
      "{}\n{}\n{}\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: {})\n"
      "  error_file: {}\n  message   : {}\n{}",
      rule, title, std::string(60, '-'), LocalTime(first->wall), HostName(), rank, local,
      event.status.signal != 0 ? -event.status.signal : event.status.code, first->pid,
      access(error_file.c_str(), F_OK) == 0 ? error_file : "<N/A>", MessageOf(event, first->pid), rule);
}

}  // namespace lockstep::node
