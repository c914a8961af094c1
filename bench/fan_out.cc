// How long a coordinator takes to restart a job of many nodes: from an agent's word that a rank died until every agent
// has been told to kill, and until every agent has been told to begin anew. The coordinator is the shipped one, with
// its journal; the agents are simulated, in a process of their own, and speak the real protocol over loopback. They
// answer at once, so what is measured is deciding, journalling and fanning out.
//
//   fan_out AGENTS ROUNDS     prints {"agents", "joined_s", "killed_s": [...], "spawned_s": [...]}
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "lockstep/agent/launch.h"
#include "lockstep/base/check.h"
#include "lockstep/node/lead.h"
#include "lockstep/rpc/client.h"

namespace lockstep {
namespace {

constexpr Seconds kTick{0.1};
constexpr Nanos kObservePeriod{300'000'000}, kSamplePeriod{500'000'000}, kTrainFor{1'500'000'000};
constexpr int64_t kStepsPerEpoch = 100;

// The agents of all nodes; the same poller serves them.
class Agents {
 public:
  Agents(int count, int rounds, const std::string& address) : count_(count), rounds_(rounds), agents_(count) {
    for (int i = 0; i < count; ++i) {
      control::Join join{.name = fmt::format("node{}", i), .token = fmt::format("token{}", i)};
      join.least_nodes = join.most_nodes = count;
      agents_[i].client = std::make_unique<rpc::Client>(
          std::vector<std::string>{address}, join, poller_, clock_,
          rpc::Client::Listener{
              .welcomed = [this, i](const control::Place& place, const std::string&) { Welcomed(agents_[i], place); },
              .refused = [](const std::string& why) { LS_CHECK(false, "{}", why); },
              .told =
                  [this, i](const control::Told& told) {
                    std::visit([&](const auto& body) { Hear(agents_[i], body); }, told);
                  },
              .lost = [](const std::string& why) { LS_CHECK(false, "lost: {}", why); }});
    }
  }

  void Run() {
    began_ = clock_.Now();
    poller_.Run(kTick, [this] { Tick(); });
    fmt::print("{{\"agents\": {}, \"joined_s\": {:.4f}, \"killed_s\": [{:.5f}], \"spawned_s\": [{:.5f}]}}\n", count_,
               joined_s_, fmt::join(killed_s_, ", "), fmt::join(spawned_s_, ", "));
  }

 private:
  struct Agent {
    std::unique_ptr<rpc::Client> client;
    int rank = 0;
    EpochId epoch;
    std::optional<control::CheckpointId> restore;
    Nanos observed, sampled;
  };

  void Welcomed(Agent& agent, const control::Place& place) {
    agent.rank = place.first_rank;
    agent.client->Say(control::AllSaid{});
  }

  template <typename Other>
  void Hear(Agent&, const Other&) {}
  void Hear(Agent& agent, const control::Command& command) {
    std::visit([&](const auto& body) { Do(agent, body); }, command);
  }
  void Hear(Agent& agent, const control::HostStore& wish) {
    agent.client->Say(control::StoreAt{wish.epoch, "127.0.0.1", 1, true});
  }

  template <typename Other>
  void Do(Agent&, const Other&) {}
  void Do(Agent& agent, const control::KillEpoch& command) {
    if (++killed_ == count_) killed_s_.push_back(SinceDeath());
    agent.client->Say(control::EventBody(control::EpochStopped{command.epoch}));
  }
  void Do(Agent& agent, const control::ChooseRestore& command) {
    agent.client->Say(control::RestoreFound{command.next, {Reached(agent)}, {}});
  }
  void Do(Agent& agent, const control::PublishRestore& command) { agent.restore = command.point; }
  void Do(Agent& agent, const control::Spawn& command) {
    agent.epoch = command.epoch;
    agent.client->Say(control::EventBody(control::EpochSpawned{command.epoch}));
    agent.client->Say(control::EventBody(control::LoopBegan{command.epoch, clock_.Now(), agent.restore}));
    if (++spawned_ < count_) return;
    training_since_ = clock_.Now();
    if (died_.value != 0) spawned_s_.push_back(SinceDeath());
    if (died_.value == 0) joined_s_ = ToSeconds(clock_.Now() - began_).value;
  }

  control::CheckpointId Reached(const Agent& agent) const {
    return {agent.epoch, kStepsPerEpoch * static_cast<int64_t>(agent.epoch.value())};
  }
  double SinceDeath() const { return ToSeconds(clock_.Now() - died_).value; }

  void Tick() {
    const Nanos now = clock_.Now();
    for (Agent& agent : agents_) {
      agent.client->Tick();
      if (agent.epoch.value() != 0) Report(agent, now);
    }
    if (training_since_.value == 0 || now - training_since_ < kTrainFor) return;
    if (static_cast<int>(spawned_s_.size()) == rounds_) return poller_.Stop();
    Die(agents_[static_cast<size_t>(count_ / 2)]);
  }

  void Report(Agent& agent, Nanos now) {
    if (now - agent.sampled >= kSamplePeriod) {
      agent.sampled = now;
      detect::RankSample sample;
      sample.rank = RankId(agent.rank);
      sample.at = sample.step_end = now;
      sample.step = Reached(agent).step;
      sample.in_loop = true;
      agent.client->Say(control::Samples{agent.epoch, {sample}, {}, {sample.step, now}});
    }
    if (now - agent.observed < kObservePeriod) return;
    agent.observed = now;
    control::Observed observed;
    observed.ranks = {{RankId(agent.rank), 1, "running", Reached(agent).step, Seconds{0.1}}};
    agent.client->Say(observed);
  }

  void Die(Agent& agent) {
    training_since_ = Nanos{};
    killed_ = spawned_ = 0;
    died_ = clock_.Now();
    agent.client->Say(control::EventBody(
        control::RankExited{agent.epoch, RankId(agent.rank), {0, SIGKILL}, {}, {Reached(agent).step, died_}, died_}));
  }

  const int count_, rounds_;
  SystemClock clock_;
  Poller poller_;
  std::vector<Agent> agents_;
  int killed_ = 0, spawned_ = 0;
  Nanos began_, died_, training_since_;
  double joined_s_ = 0;
  std::vector<double> killed_s_, spawned_s_;
};

void Lead(int port, const std::string& run_dir) {
  node::RunOptions options;
  options.nodes.endpoint = fmt::format("127.0.0.1:{}", port);
  SystemClock clock;
  Poller poller;
  node::Lead lead(options, poller, clock,
                  {.line = [](const std::string&) {},
                   .placed = [](const control::Place&) { return absl::OkStatus(); },
                   .told = [](const control::Told&) {},
                   .moved = [](const control::Place&) {},
                   .failed = [](const absl::Status& status) { LS_CHECK(false, "{}", Message(status)); }});
  absl::Status opened = lead.Open();
  if (opened.ok()) opened = lead.KeepIn(run_dir);
  LS_CHECK(opened.ok(), "{}", Message(opened));
  lead.Await({}, "the run");
  poller.Run(kTick, [&] { lead.Tick(); });
}

int Main(int agents, int rounds) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  char run_dir[] = "/tmp/lockstep-fan-out-XXXXXX";
  LS_CHECK(mkdtemp(run_dir) != nullptr, "{}", run_dir);
  const absl::StatusOr<int> port = agent::FreePort(0);
  LS_CHECK(port.ok(), "{}", Message(port.status()));
  const pid_t lead = fork();  // before gRPC has a thread
  if (lead == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Lead(*port, run_dir);
    _exit(0);
  }
  Agents(agents, rounds, fmt::format("127.0.0.1:{}", *port)).Run();
  kill(lead, SIGKILL);
  waitpid(lead, nullptr, 0);
  std::filesystem::remove_all(run_dir);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: fan_out AGENTS ROUNDS\n");
    return 2;
  }
  return lockstep::Main(std::atoi(argv[1]), std::atoi(argv[2]));
}
