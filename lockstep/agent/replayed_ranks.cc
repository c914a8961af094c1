#include "lockstep/agent/replayed_ranks.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/agent/exception.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"

namespace lockstep::agent {
namespace {

constexpr size_t kMostOfALine = 200;

std::string LastLine(const std::string& path) {
  std::string text = ReadFile(path).value_or("");
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  const size_t newline = text.rfind('\n');
  return text.substr(newline == std::string::npos ? 0 : newline + 1);
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was killed by {} (signal {})", strsignal(WTERMSIG(status)), WTERMSIG(status));
  return fmt::format("left with exit status {}", WEXITSTATUS(status));
}

// "torch.distributed.DistNetworkError: The server socket has failed ..."
bool TellsOfTakenPort(const std::string& line) {
  const size_t colon = line.find(": ");
  if (colon == std::string::npos) return false;
  std::string type = line.substr(0, colon);
  type = type.substr(type.rfind('.') + 1);  // npos + 1 is 0
  return IsPortTaken(type, line.substr(colon + 2));
}

bool Runs(pid_t pid) { return pid != 0; }

}  // namespace

Environment ReplayEnvironment(const ReplayPlace& place, const Json& plan) {
  const std::string rank = std::to_string(place.rank), ranks = std::to_string(place.ranks);
  return {{"RANK", rank},
          {"WORLD_SIZE", ranks},
          {"ROLE_RANK", rank},
          {"ROLE_WORLD_SIZE", ranks},
          {"ROLE_NAME", "default"},
          {"LOCAL_RANK", std::to_string(place.local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(place.local_ranks)},
          {"GROUP_RANK", std::to_string(place.index)},
          {"GROUP_WORLD_SIZE", std::to_string(place.machines)},
          {"MASTER_ADDR", place.master_host},
          {"MASTER_PORT", std::to_string(place.master_port)},
          {"TORCHELASTIC_RUN_ID", "replay"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_MAX_RESTARTS", "0"},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"USE_LIBUV", "0"},
          {"LOCKSTEP_REPLAY", OneLine(plan)}};
}

void ReplayedRanks::Began(std::vector<pid_t> pids, Nanos now) {
  pids_ = std::move(pids);
  began_ = now;
}

// Kills who still runs.
void ReplayedRanks::End(std::string trouble, Nanos now) {
  if (trouble_.empty()) {
    trouble_ = std::move(trouble);
    troubled_at_ = now;
  }
  for (const pid_t pid : pids_)
    if (Runs(pid)) KillTree(pid);
}

bool ReplayedRanks::Ended(pid_t pid, int status, Nanos now) {
  const auto found = std::find(pids_.begin(), pids_.end(), pid);
  if (found == pids_.end()) return false;
  *found = 0;
  if (std::none_of(pids_.begin(), pids_.end(), Runs)) ended_ = now;
  if (status == 0 || !trouble_.empty()) return true;
  const Rank& rank = ranks_[static_cast<size_t>(found - pids_.begin())];
  const std::string last = LastLine(rank.log);
  port_taken_ = TellsOfTakenPort(last);
  std::string trouble = fmt::format("{} {}", rank.name, HowItEnded(status));
  if (!last.empty()) trouble += ": " + last.substr(0, kMostOfALine);
  End(std::move(trouble), now);
  return true;
}

void ReplayedRanks::EndLate(Seconds deadline, Nanos now) {
  if (over() || !trouble_.empty() || now - began_ < ToNanos(deadline)) return;
  std::string who;
  for (size_t rank = 0; rank < pids_.size(); ++rank)
    if (Runs(pids_[rank])) who += (who.empty() ? "" : ", ") + ranks_[rank].name;
  End(fmt::format("not done after {:g} s: {}", deadline.value, who), now);
}

}  // namespace lockstep::agent
