#include "lockstep/node/failure.h"

#include <string.h>
#include <unistd.h>

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
    return fmt::format("{}: {}{}", exception.type, exception.message, where);
  }
  if (event.status.signal == 0) return fmt::format("no exception was noted (exit code {})", event.status.code);
  const char* name = sigabbrev_np(event.status.signal);
  return fmt::format("Signal {} (SIG{}) received by PID {}", event.status.signal, name ? name : "?", pid);
}

auto Order(const control::RankExited& event) {
  return std::tuple(event.exception && event.exception->connection, event.exited.value);
}

}  // namespace

void FirstFailure::Add(const control::RankExited& event, int64_t pid, int restart_count, Nanos at, Nanos wall) {
  if (event.status.code == 0 && event.status.signal == 0) return;
  const bool newer = !first_ || first_->event.epoch != event.epoch;
  if (!newer && Order(event) >= Order(first_->event)) return;
  first_ = Failure{event, pid, restart_count, wall - (at - event.exited)};
}

std::string FirstFailure::Table(const agent::RunSpec& spec, EpochId epoch) const {
  if (!first_ || first_->event.epoch != epoch) return "";
  const control::RankExited& event = first_->event;
  const int rank = event.rank.value(), local = rank - spec.place.first_rank;
  const std::string error_file = agent::TorchErrorPath(spec, event.epoch.value(), first_->restart_count, local);
  const std::string title = fmt::format("{} FAILED, first by rank {}", spec.command.front(), rank);
  const std::string rule(60, '=');
  return fmt::format(
      "{}\n{}\n{}\n  time      : {}\n  host      : {}\n  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: {})\n"
      "  error_file: {}\n  message   : {}\n{}",
      rule, title, std::string(60, '-'), LocalTime(first_->wall), HostName(), rank, local,
      event.status.signal != 0 ? -event.status.signal : event.status.code, first_->pid,
      access(error_file.c_str(), F_OK) == 0 ? error_file : "<N/A>", MessageOf(event, first_->pid), rule);
}

}  // namespace lockstep::node
