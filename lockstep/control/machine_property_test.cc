// Whatever happens, in whatever order: our invariants hold, the ledger is whole, there is always a way on, and a replay
// gives the same state.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/base/json_text.h"
#include "lockstep/control/machine.h"
#include "lockstep/control/needs.h"
#include "lockstep/control/report.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

constexpr int kRanks = 4;

// Draws events: most answer what the state waits for, some are of stale or future epochs, and some make no sense at
// all.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}

  int64_t Below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }

  Event Next(const State& state) {
    now_ += OneIn(10) ? -Below(2'000'000) : Below(5'000'000);
    now_ = std::max<int64_t>(now_, 1);
    return {{now_}, {now_ + 1'000'000'000}, OneIn(3) ? Noise(state) : Answer(state)};
  }

 private:
  EpochId Epoch(const State& state) { return OneIn(12) ? EpochId(static_cast<uint64_t>(Below(6))) : state.epoch; }
  Nanos Moment() { return {OneIn(20) ? 0 : std::max<int64_t>(1, now_ - Below(9'000'000) + 1'000'000)}; }
  Progress SomeProgress(const State& state) { return {state.progress.step + Below(4) - 1, Moment()}; }
  std::optional<CheckpointId> Point(const State& state) {
    if (OneIn(5)) return std::nullopt;
    return CheckpointId{state.epoch, std::max<int64_t>(-1, state.progress.step - Below(3))};
  }

  // The event that the state waits for.
  EventBody Answer(const State& state) {
    const EpochId next(state.epoch.value() + 1);
    switch (state.mode) {
      case Mode::kSpawning:
        return OneIn(10) ? EventBody(SpawnFailed{Epoch(state), "no memory"}) : EventBody(EpochSpawned{Epoch(state)});
      case Mode::kStarting:
        return state.epoch.value() == 0 ? Start() : EventBody(LoopBegan{Epoch(state), Moment(), state.restore});
      case Mode::kConfirming:
        return OneIn(2) ? EventBody(StacksKept{Epoch(state), "s"}) : EventBody(SecondaryGraceOver{Epoch(state)});
      case Mode::kChoosing:
        return RestoreChosen{OneIn(12) ? state.epoch : next, Point(state), {}};
      case Mode::kLoading:
        return RestoreChosen{OneIn(12) ? next : state.epoch, OneIn(2) ? Point(state) : std::nullopt, {}};
      case Mode::kProbing:
        return SomeAnswer(state);
      case Mode::kStopping:
        if (OneIn(4)) return StopOverdue{Epoch(state)};
        [[fallthrough]];
      case Mode::kFinishing:
        return EpochStopped{Epoch(state)};
      case Mode::kRunning:
      case Mode::kFinished:
        break;
    }
    return OneIn(4) ? EventBody(CaughtUp{Epoch(state), SomeProgress(state)})
                    : EventBody(ProgressSeen{Epoch(state), SomeProgress(state)});
  }

  EventBody Start() {
    JobSpec spec{"property", kRanks, static_cast<int>(Below(8)), static_cast<int>(1 + Below(4)), OneIn(4), Seconds{30}};
    spec.load_first = OneIn(3);
    spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
    spec.standbys = 3;
    spec.can_ask = OneIn(2);
    spec.policy.wait_for_node = Seconds{0.05};
    spec.policy.dry_run = OneIn(8);
    spec.policy.rollback = !OneIn(4);
    spec.policy.update_steps = static_cast<int>(1 + Below(4));
    spec.policy.evictions_per_hour = static_cast<int>(Below(3));
    return JobStarted{spec};
  }

  EventBody SomeExit(const State& state) {
    RankExited event = Exit(Epoch(state).value(), static_cast<int>(Below(kRanks + 1)), {}, SomeProgress(state));
    event.exited = Moment();
    switch (Below(4)) {
      case 0:
        event.status.signal = OneIn(2) ? SIGKILL : SIGABRT;
        break;
      case 1:
        event.status.code = 3;
        break;
      case 2:
        event.status.code = 1;
        event.exception = ExceptionInfo{OneIn(2) ? "ValueError" : "OSError", "m", "train.py:1 in f", OneIn(2)};
        event.exception->after_loss = !event.exception->connection && OneIn(2);
        break;
      default:
        break;
    }
    return event;
  }

  EventBody Noise(const State& state) {
    switch (Below(26)) {
      case 0:
        return Start();
      case 1:
        return EpochSpawned{Epoch(state)};
      case 2:
        return LoopBegan{Epoch(state), Moment(), Point(state)};
      case 3:
        return CaughtUp{Epoch(state), SomeProgress(state)};
      case 4:
        return EpochStopped{Epoch(state)};
      case 5:
        return RestoreChosen{Epoch(state), Point(state), {"rejected"}};
      case 6:
        return JobPaused{};
      case 7:
        return JobContinued{};
      case 8:
        return OneIn(2) ? EventBody(WatcherGone{Moment()}) : EventBody(WaitInterrupted{Moment()});
      case 9:
        return SecondaryGraceOver{Epoch(state)};
      case 10:
        return OneIn(20) ? EventBody(StopAsked{SIGINT}) : EventBody(Tick{});
      case 11:
      case 12:
        return SomeSuspicion(state);
      case 13:
        return OneIn(30) ? EventBody(AgentGone{static_cast<int>(Below(2)), "node b is lost"})
                         : EventBody(AgentLost{static_cast<int>(Below(2)), "b", "nothing heard", Moment()});
      case 14:
        return OneIn(10) ? EventBody(JournalBehind{EpochId(state.epoch.value() + static_cast<uint64_t>(Below(3)))})
                         : EventBody(AgentBack{static_cast<int>(Below(2))});
      case 16:
        return SomeAlert();
      case 17:
        return SomeAnswer(state);
      case 21:
      case 25:
        return SomeUpdate();
      case 22:
        return OneIn(4) ? EventBody(UpdateDue{SomeVersion(state)})
                        : EventBody(CodeKept{SomeVersion(state), OneIn(4) ? "b has no train.py" : ""});
      case 23:
        return ProgressSeen{Epoch(state), SomeProgress(state), Seconds{0.1 * static_cast<double>(Below(4))}};
      case 24:
        return ClusterDid{Below(4), OneIn(2) ? "a" : "", "asked, or drained"};
      case 15:
        return OneIn(4) ? EventBody(StandbyLeft{"token 1"}) : SomeStandby();
      default:
        return SomeExit(state);
    }
  }

  int SomeVersion(const State& state) {
    return static_cast<int>(Below(static_cast<int64_t>(state.versions.size()) + 1));
  }

  EventBody SomeUpdate() {
    const std::string code = OneIn(2) ? fmt::format("/code/{}", Below(3)) : "";
    return UpdateAsked{
        code, code, {{"LR", std::to_string(Below(3))}}, OneIn(2), Seconds{static_cast<double>(Below(5))}};
  }

  EventBody SomeStandby() {
    const int64_t which = Below(3);
    return StandbyCame{{fmt::format("s{}", which), static_cast<int>(1 + Below(2)), fmt::format("token {}", which)}};
  }

  EventBody SomeAlert() {
    const auto kind = static_cast<AlertClass>(Below(4));
    return Alerted{static_cast<int>(Below(3)), OneIn(2) ? "gpu" : "link", kind, "", "it is so", Moment(), OneIn(3)};
  }

  EventBody SomeAnswer(const State& state) {
    const Rung rung = OneIn(6) || !IsProbe(state.fault.plan.rung) ? Rung::kReplay : state.fault.plan.rung;
    Probed probed{Epoch(state), rung, {}, {}};
    if (OneIn(2)) return probed;
    incident::Finding finding;
    finding.suspects = {{incident::Suspect::Kind::kNode, OneIn(2) ? "a" : "b"}};
    finding.certain = OneIn(2);
    probed.findings = {finding};
    return probed;
  }

  EventBody SomeSuspicion(const State& state) {
    Suspected event = Suspect(Epoch(state).value(), static_cast<int>(Below(kRanks)), OneIn(2), 0, SomeProgress(state));
    event.finding.since = Moment();
    return event;
  }

  std::mt19937_64 random_;
  int64_t now_ = 1'000'000'000;
};

Nanos WallTime(const State& state) {
  Nanos sum;
  for (const Nanos part : state.ledger.Total(state.now)) sum += part;
  return sum;
}

// All that a person could see of a state.
std::string Seen(const State& state) {
  return RenderJson(StatusReport(state, Observed{}, state.now)) + RenderJson(IncidentsReport(state, state.now)) +
         Text(PendingCommands(state));
}

bool RepairsByForce(const Command& command) {
  const Spawn* spawn = std::get_if<Spawn>(&command);
  return (spawn && spawn->epoch.value() > 1) || std::holds_alternative<KeepStacks>(command) ||
         std::holds_alternative<Seat>(command) || std::holds_alternative<Probe>(command);
}

struct Play {
  State state;
  std::vector<Event> events;
  Nanos first;
};

void CheckAfter(const Play& play, const std::vector<Command>& commands, uint64_t seed) {
  const State& state = play.state;
  const absl::Status valid = Validate(state);
  ASSERT_TRUE(valid.ok()) << Message(valid) << "; seed " << seed;
  if (state.epoch.value() != 0 && state.mode != Mode::kFinished) {
    ASSERT_EQ(WallTime(state).value, (state.now - play.first).value) << "seed " << seed;
  }
  // Modes that wait for an answer have asked for it; the others wait for the job itself.
  const bool waits_for_job = state.mode == Mode::kStarting || state.mode == Mode::kRunning;
  ASSERT_EQ(PendingCommands(state).empty(), waits_for_job) << ModeName(state.mode) << "; seed " << seed;
  const auto evicted = std::ranges::count_if(state.evictions, [](const Eviction& e) { return e.role != Role::kLoss; });
  ASSERT_LE(evicted, state.spec.policy.dry_run ? 0 : state.spec.policy.evictions_per_hour) << "seed " << seed;
  const auto bad = std::ranges::count(state.versions, VersionStage::kBad, &Update::stage);
  ASSERT_FALSE(bad > 0 && (state.spec.policy.dry_run || !state.spec.policy.rollback)) << "seed " << seed;
  ASSERT_LE(std::ranges::count(state.versions, VersionStage::kWaiting, &Update::stage), 1) << "seed " << seed;
  ASSERT_LE(std::ranges::count(state.versions, VersionStage::kOnTrial, &Update::stage), 1) << "seed " << seed;
  const schedule::Wanted wanted = NeedsOf(state);
  ASSERT_TRUE(state.spec.can_ask || wanted.machines == 0) << "seed " << seed;
  ASSERT_TRUE(wanted.machines == 0 || state.mode != Mode::kFinished) << "seed " << seed;
  for (const Command& command : commands)
    ASSERT_FALSE(state.spec.observe_only && RepairsByForce(command)) << "seed " << seed;
}

Play PlayOnce(uint64_t seed) {
  Chance chance(seed);
  Play play;
  for (int i = 0; i < 120; ++i) {
    const Event event = chance.Next(play.state);
    const bool begun = play.state.epoch.value() != 0;
    const std::vector<Command> commands = Step(play.state, event);
    if (!begun && play.state.epoch.value() != 0) play.first = play.state.now;
    play.events.push_back(event);
    CheckAfter(play, commands, seed);
    if (testing::Test::HasFatalFailure()) break;
  }
  return play;
}

TEST(Machine, HoldsItsInvariantsAndReplaysFromJson) {
  int finished = 0;
  int restarted = 0;
  int updated = 0, taken_back = 0, accepted = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    const Play play = PlayOnce(seed);
    ASSERT_FALSE(HasFatalFailure());
    State replayed;
    for (const Event& event : play.events) {
      if (std::holds_alternative<Tick>(event.body)) continue;  // never journalled
      const auto body = EventFromJson(TypeName(event.body), ParseJson(OneLine(ToJson(event.body))));
      ASSERT_TRUE(body.ok()) << body.status();
      Step(replayed, Event{event.at, event.wall, *body});
    }
    ASSERT_EQ(Seen(replayed), Seen(play.state)) << "seed " << seed;
    finished += play.state.mode == Mode::kFinished;
    restarted += play.state.restarts > 1;
    updated += play.state.running > 0;
    taken_back += std::ranges::count(play.state.versions, VersionStage::kBad, &Update::stage) > 0;
    accepted += std::ranges::count(play.state.versions, VersionStage::kGood, &Update::stage) > 1;
  }
  // The schedules must reach the corners, or they prove nothing.
  EXPECT_GT(finished, 150);
  EXPECT_GT(restarted, 150);
  EXPECT_GT(updated, 100);
  EXPECT_GT(taken_back, 50);
  EXPECT_GT(accepted, 50);
}

// From any state: if only what the state waits for happens from now on, the job comes to run, or ends, in a few events.
TEST(Machine, ThereIsAlwaysAWayOn) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Play play = PlayOnce(seed);
    if (play.state.epoch.value() == 0) continue;
    for (int i = 0; i < 6 && play.state.mode != Mode::kRunning && play.state.mode != Mode::kFinished; ++i) {
      const EpochId epoch = play.state.epoch;
      const std::vector<EventBody> answers = {
          EpochSpawned{epoch},          LoopBegan{epoch, play.state.now, play.state.restore},
          StacksKept{epoch, ""},        SecondaryGraceOver{epoch},
          EpochStopped{epoch},          Probed{epoch, Rung::kDiagnose},
          Probed{epoch, Rung::kReplay}, RestoreChosen{EpochId(epoch.value() + 1), {}, {}}};
      for (const EventBody& answer : answers) Step(play.state, Event{play.state.now + Nanos{1}, {}, answer});
    }
    EXPECT_TRUE(play.state.mode == Mode::kRunning || play.state.mode == Mode::kFinished)
        << ModeName(play.state.mode) << "; seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep::control
