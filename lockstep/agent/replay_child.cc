#include "lockstep/agent/replay_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/agent/replayed_ranks.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"

namespace lockstep::agent {
namespace {

constexpr long kLookEveryNs = 5'000'000;

absl::StatusOr<RanksToReplay> ReadInput(const std::string& text) {
  const Json json = ParseJson(text);
  if (json.is_discarded()) return DataLoss("expected what to run, as JSON");
  try {
    if (json.at("for").get<pid_t>() != getppid()) return Unavailable("whoever started this is gone");
    RanksToReplay ranks;
    const Json& program = json.at("program");
    ranks.program = {program.at("python"),  program.at("package_dir"), program.at("cwd"),
                     program.at("command"), program.at("module"),      program.at("code_root"),
                     program.at("code"),    program.at("changed"),     program.at("by_exec")};
    ranks.deadline = Seconds{json.at("deadline_s").get<double>()};
    for (const Json& rank : json.at("ranks"))
      ranks.ranks.push_back({rank.at("name"), {rank.at("environment"), rank.at("log"), rank.at("command")}});
    return ranks;
  } catch (const Json::exception& error) {
    return DataLoss("what to run: {}", error.what());
  }
}

// The script is told whose ranks end with whom.
Environment WithRunner(Environment environment) {
  Json plan = ParseJson(environment["LOCKSTEP_REPLAY"]);
  plan["runner"] = getpid();
  environment["LOCKSTEP_REPLAY"] = OneLine(plan);
  return environment;
}

absl::StatusOr<RanksReplayed> Run(const RanksToReplay& wanted) {
  const SystemClock clock;
  std::vector<ReplayedRanks::Rank> names;
  std::vector<RankStart> starts;
  for (const RanksToReplay::Rank& rank : wanted.ranks) {
    names.push_back({rank.name, rank.start.log});
    starts.push_back({WithRunner(rank.start.environment), rank.start.log, rank.start.command});
  }
  ReplayedRanks ranks(std::move(names));
  RankHost host(wanted.program);
  LS_ASSIGN_OR_RETURN(std::vector<pid_t> pids, host.Start(starts));
  ranks.Began(std::move(pids), clock.Now());
  while (!ranks.over()) {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) ranks.Ended(pid, status, clock.Now());
    ranks.EndLate(wanted.deadline, clock.Now());
    const timespec pause{0, kLookEveryNs};
    nanosleep(&pause, nullptr);
  }
  return RanksReplayed{ranks.trouble(), ranks.troubled_at(), ranks.port_taken()};
}

}  // namespace

std::string InputText(const RanksToReplay& wanted) {
  const RankProgram& program = wanted.program;
  Json ranks = Json::array();
  for (const RanksToReplay::Rank& rank : wanted.ranks)
    ranks.push_back({{"name", rank.name},
                     {"environment", rank.start.environment},
                     {"log", rank.start.log},
                     {"command", rank.start.command}});
  const Json json = {{"for", getpid()},
                     {"program",
                      {{"python", program.python},
                       {"package_dir", program.package_dir},
                       {"cwd", program.cwd},
                       {"command", program.command},
                       {"module", program.module},
                       {"code_root", program.code_root},
                       {"code", program.code},
                       {"changed", program.changed},
                       {"by_exec", program.by_exec}}},
                     {"deadline_s", wanted.deadline.value},
                     {"ranks", ranks}};
  return OneLine(json);
}

absl::StatusOr<RanksReplayed> ReadReplayed(const std::string& text) {
  const Json json = ParseJson(text);
  if (!json.is_object()) return DataLoss("expected how the ranks ended, as JSON, found \"{}\"", text.substr(0, 80));
  return RanksReplayed{json.value("trouble", ""),
                       {json.value("troubled_at_ns", int64_t{0})},
                       json.value("port_taken", false),
                       json.value("error", "")};
}

int ReplayRanksMain() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  const absl::StatusOr<RanksToReplay> wanted = ReadInput(text);
  if (!wanted.ok()) {
    Log(LogLevel::kError, "{}", Message(wanted.status()));
    return 2;
  }
  const absl::StatusOr<RanksReplayed> ended = Run(*wanted);
  const RanksReplayed said = ended.ok() ? *ended : RanksReplayed{.error = Message(ended.status())};
  const Json json = {{"trouble", said.trouble},
                     {"troubled_at_ns", said.troubled_at.value},
                     {"port_taken", said.port_taken},
                     {"error", said.error}};
  std::cout << OneLine(json) << std::endl;
  return 0;
}

}  // namespace lockstep::agent
