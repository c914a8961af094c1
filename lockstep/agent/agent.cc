#include "lockstep/agent/agent.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>

#include "lockstep/agent/code_copy.h"
#include "lockstep/agent/collectors.h"
#include "lockstep/agent/epoch_store.h"
#include "lockstep/agent/evidence.h"
#include "lockstep/agent/exception.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/client/bell.h"
#include "lockstep/client/commit.h"
#include "lockstep/client/life.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kStackPeriod{1.0};  // while a stall is on
constexpr Seconds kTrailsPeriod{5.0};
constexpr Seconds kObservePeriod{0.3};
constexpr Bytes kRecordLimit{256 << 20};  // four million steps

double MeanLoss(const ls_board& board, const std::vector<Worker>& workers) {
  double sum = 0;
  int known = 0;
  for (const Worker& worker : workers) {
    const ls_rank_block& block = board.rank[worker.rank];
    const double loss = std::bit_cast<double>(Load(block.loss_bits));
    if (std::isnan(loss) || Load(block.epoch) != Load(board.epoch)) continue;  // a block of an older epoch, or of none
    if (std::isinf(loss)) return std::numeric_limits<double>::infinity();
    sum += loss;
    ++known;
  }
  return known > 0 ? sum / known : std::nan("");
}

// The step first: a loss may be newer than its step, and never older. The board's own epoch is 0 once its ranks are to
// end, and what they told stays.
std::vector<LossWatch::Seen> LossesOf(uint64_t epoch, const RunSpec& spec, const ls_board& board,
                                      const std::vector<Worker>& workers) {
  std::vector<LossWatch::Seen> seen;
  for (const Worker& worker : workers) {
    const ls_rank_block& block = board.rank[worker.rank];
    if (Load(block.epoch) != epoch) continue;
    const int64_t step = Load(block.step);
    const double loss = std::bit_cast<double>(Load(block.loss_bits));
    seen.push_back(
        {GlobalRank(spec, worker.rank), step, loss, Load(block.first_finite) - 1, Load(block.newest_finite) - 1});
  }
  return seen;
}

}  // namespace

Agent::Agent(RunSpec spec, inspect::Settings inspections, Poller& poller, const Clock& clock, Listener listener)
    : spec_(std::move(spec)),
      inspections_(std::move(inspections)),
      poller_(poller),
      clock_(clock),
      listener_(std::move(listener)),
      link_(spec_, poller_,
            {.hello = [this](const StarterLink::Hello& hello) { TakeHello(hello); },
             .store =
                 [this](uint64_t epoch, int port, bool hosted) {
                   listener_.say(control::StoreAt{EpochId(epoch), spec_.torchrun.master_addr, port, hosted});
                 },
             .spawned =
                 [this](uint64_t epoch, const std::vector<pid_t>& pids, bool by_zygote) {
                   start_method_ = by_zygote ? "zygote" : "exec";
                   WorkersRun(epoch, pids);
                 },
             .spawn_failed =
                 [this](uint64_t epoch, const std::string& error) {
                   Remember(EpochId(epoch), control::SpawnFailed{EpochId(epoch), error});
                 },
             .exited = [this](uint64_t epoch, const Worker& worker) { WorkerExited(epoch, worker); },
             .stopped = [this](uint64_t epoch) { AllStopped(epoch); },
             .note = [this](const std::string& text) { listener_.note(text); },
             .ring = [this](int rank, const Fd& ring) { records_.Attach(rank, ring); },
             .output = [this](int rank, int stream, std::string_view data) { listener_.output(rank, stream, data); },
             .lost = [this] { StarterLost(); }}),
      watch_(spec_),
      records_(spec_.run_dir + "/records", kRecordLimit),
      part_writer_(spec_, clock_),
      uploader_(spec_, clock_, [this](const std::string& text) { listener_.note(text); }),
      flusher_(spec_, clock_,
               {.note = [this](const std::string& text) { listener_.note(text); },
                .say = [this](const control::Said& said) { listener_.say(said); },
                .reading = [this] { return uploader_.reading(); }}),
      board_watch_(poller_, {.ends = [this](int rank) { WorkerEnds(rank); }, .rings = [this] { SayHolding(); }}),
      probing_(poller_),
      replaying_(poller_, [this](const control::Said& said) { listener_.say(said); }),
      background_(poller_) {}

absl::Status Agent::Launch() {
  LS_RETURN_IF_ERROR(OpenKeeping());
  Inspect();
  return link_.Launch();
}

absl::Status Agent::Adopt() {
  LS_RETURN_IF_ERROR(OpenKeeping());
  Inspect();
  return link_.Connect();
}

// There is nobody else to keep anything on one node.
absl::Status Agent::OpenKeeping() {
  if (spec_.place.nodes == 1) return absl::OkStatus();
  keeping_.emplace(spec_, poller_, clock_,
                   Keeping::Listener{.note = [this](const std::string& text) { listener_.note(text); },
                                     .kept = [this] { SayHolding(); }});
  probing_.OpenRing(spec_);
  return keeping_->Open();
}

void Agent::Inspect() {
  std::vector<std::string> paths = {spec_.cwd, spec_.run_dir, "/dev/shm", "/tmp"};
  if (!spec_.checkpoint_dir.empty()) paths.push_back(spec_.checkpoint_dir);
  inspection_.emplace(poller_, clock_, inspections_, inspect::Where{inspect::Tree(), std::move(paths)},
                      [this](const inspect::Alert& alert) { HearAlert(alert); });
}

void Agent::HearAlert(const inspect::Alert& alert) {
  listener_.note(fmt::format("{}: {}{}", spec_.node_name, inspect::AlertText(alert), WhoseText(alert, ranks_)));
  const control::Alerted said = alerts_.Take(alert, spec_.place.node);
  if (ready_) listener_.say(said);
}

void Agent::Seat(const control::Place& place) {
  spec_.place = place;
  if (place.nodes > 1 && !keeping_) (void)OpenKeeping();
  alerts_.Seat(place.node);
  if (keeping_) keeping_->Forget();
  link_.Seat(place);
}

void Agent::Move(const control::Place& place) {
  loaded_.reset();  // it was for another place
  const BoardMap* board = link_.board();
  const bool holds = board != nullptr && Load((*board)->restore_for) != 0;
  if (holds) {
    if (!coming_) coming_.emplace();
    coming_->place = place;
    return;
  }
  Seat(place);
  TakeDisk();
  listener_.moved();
}

void Agent::Hear(const control::Told& told) {
  if (ready_) std::visit([this](const auto& body) { Do(body); }, told);
}

// Facts of an epoch, kept as long as it is the newest.
void Agent::Remember(EpochId epoch, const control::EventBody& event) {
  if (epoch > said_epoch_) said_.clear();
  said_epoch_ = std::max(epoch, said_epoch_);
  if (!std::holds_alternative<control::RankExited>(event))
    std::erase_if(said_, [&](const control::EventBody& other) { return other.index() == event.index(); });
  if (epoch == said_epoch_) said_.push_back(event);
  listener_.say(event);
}

void Agent::SayAll() {
  if (!ready_) return;
  const std::vector<control::EventBody> said = said_;  // whoever hears it may answer at once
  flusher_.Interrupted();
  if (watch_.epoch() != 0) listener_.say(watch_.Take(**link_.board(), clock_.Now()));
  for (const control::EventBody& event : said) listener_.say(event);
  for (const control::Alerted& alert : alerts_.standing()) listener_.say(alert);
  SayFirst();
  holding_ = {};
  SayWhere();
  listener_.say(Observe());
  // It may have been told where an epoch begins, and not to begin it.
  listener_.say(control::AllSaid{std::max(said_epoch_, EpochId(Load((*link_.board())->restore_for)))});
}

void Agent::SayWhere() {
  if (!keeping_) return;
  control::KeepsAt where = keeping_->address();
  where.ring_port = probing_.ring_port();
  listener_.say(where);
}

// What the starter says.

void Agent::TakeHello(const StarterLink::Hello& hello) {
  if (link_.board() == nullptr) return StarterLost();
  ls_unpin(link_.board()->get());  // of an agent that was killed
  if (!hello.workers.empty()) {
    start_method_ = hello.zygote ? "zygote" : "exec";
    restart_count_ = hello.restart_count;
    std::vector<Worker> workers = hello.workers;
    for (Worker& own : workers) {
      own.exited = false;  // told below, in full
      ranks_.insert_or_assign(own.pid, GlobalRank(spec_, own.rank));
    }
    watch_.BeginEpoch(hello.epoch, workers);
    Remember(EpochId(hello.epoch), control::EpochSpawned{EpochId(hello.epoch)});
    for (const Worker& worker : hello.workers)
      if (worker.exited) WorkerExited(hello.epoch, worker);
    SayLoopBegins();
  }
  if (hello.unheard_since.value != 0) TellUnheard(hello.unheard_since);
  ready_ = true;
  SayAll();
}

// Their files have it, and it is not shown again.
void Agent::TellUnheard(Nanos since) {
  listener_.note(fmt::format("what ranks printed since {}, while nobody watched, is in {}/logs/rank_N.log{}",
                             IsoTime(since), spec_.run_dir,
                             spec_.torchrun.log_dir.empty() ? "" : " and " + spec_.torchrun.log_dir));
  link_.UnheardTold();
}

// The workers are orphans now, of nobody who would restart or end them.
void Agent::StarterLost() {
  for (const Worker& worker : watch_.workers()) {
    if (!worker.exited) KillTree(worker.pid);
  }
  listener_.lost();
}

void Agent::WorkersRun(uint64_t epoch, const std::vector<pid_t>& pids) {
  std::vector<Worker> workers;
  for (const pid_t pid : pids) {
    Worker worker;
    worker.rank = static_cast<int>(workers.size());
    worker.pid = pid;
    ranks_.insert_or_assign(pid, GlobalRank(spec_, worker.rank));
    workers.push_back(worker);
  }
  if (watch_.epoch() != epoch) {
    watch_.BeginEpoch(epoch, workers);
    RemoveTrails(spec_, epoch - 1);  // those of the epoch before tell why it ended
    killing_ = false;
    followed_ = 0;
    holding_ = {};
  }
  Remember(EpochId(epoch), control::EpochSpawned{EpochId(epoch)});
}

// Large processes take long to end: their failure is known as soon as it begins.
void Agent::WorkerEnds(int rank) {
  for (Worker worker : watch_.workers()) {
    const std::optional<int> status = worker.rank == rank ? FailureBegun(worker.pid) : std::nullopt;
    if (!status) continue;
    worker.SetStatus(*status, clock_.Now());
    return WorkerExited(watch_.epoch(), worker);
  }
}

void Agent::FollowLives() {
  std::vector<Life> lives;
  for (const Worker& worker : watch_.workers()) {
    ls_rank_block& block = (*link_.board())->rank[worker.rank];
    if (!worker.exited && Load(block.epoch) == watch_.epoch()) lives.push_back({worker.rank, ls_life_word(&block)});
  }
  if (lives.size() == followed_) return;
  followed_ = lives.size();
  board_watch_.Follow(std::move(lives), spec_.place.nodes > 1 ? ls_bell_word(link_.board()->get()) : nullptr);
}

std::optional<ExceptionNote> Agent::NoteOf(uint64_t epoch, const Worker& worker) {
  if (auto note = ReadException(ErrorPath(spec_, epoch, worker.rank))) return note;
  if (auto note = ReadErrorRoom(ErrorRoomPath(spec_.run_dir, worker.rank), epoch)) return note;
  const auto recorded = ReadTorchError(TorchErrorPath(spec_, epoch, restart_count_, worker.rank));
  if (recorded.ok()) return *recorded;
  if (!absl::IsNotFound(recorded.status()))
    listener_.note(fmt::format("rank {}'s error file is left aside: {}", GlobalRank(spec_, worker.rank).value(),
                               Message(recorded.status())));
  return std::nullopt;
}

void Agent::WorkerExited(uint64_t epoch, const Worker& worker) {
  if (watch_.HasExited(worker)) return;  // told when it began to end
  // A job of millisecond steps may have begun its loop, and died, between two ticks.
  SayLoopBegins();
  watch_.Exited(worker);
  control::RankExited event{EpochId(epoch),  GlobalRank(spec_, worker.rank), {worker.code, worker.signal}, {}, {},
                            worker.exited_at};
  // Read however it left: a rank that raised may be killed by us, or abort, while it still unwinds.
  if (const auto note = NoteOf(epoch, worker)) {
    event.exception = note->info;
    if (note->info.type == "ModuleNotFoundError") {
      event.exception->message += fmt::format(" (the interpreter is {}, found by {}; name another with --python)",
                                              spec_.python, spec_.python_from);
    }
    if (note->at.value != 0) event.exited = std::min(event.exited, note->at);
  }
  if (link_.board() != nullptr) {
    event.progress = watch_.ProgressNow(**link_.board());
    event.step = watch_.StepOf(**link_.board(), worker.rank);
    SayHolding();  // the last word on what it leaves
  }
  Remember(EpochId(epoch), event);
}

// The last word on its losses too: whatever ended the epoch, what it had saved may have been bad by then.
void Agent::AllStopped(uint64_t epoch) {
  if (link_.board() != nullptr && watch_.epoch() == epoch)
    losses_.Take(EpochId(epoch), LossesOf(epoch, spec_, **link_.board(), watch_.workers()));
  Remember(EpochId(epoch), control::EpochStopped{EpochId(epoch), losses_.BadFrom()});
}

void Agent::SayLoopBegins() {
  if (link_.board() == nullptr || told_loop_of_ == watch_.epoch()) return;
  const std::optional<control::LoopBegan> began = watch_.LoopBegins(**link_.board());
  if (!began) return;
  told_loop_of_ = watch_.epoch();
  Remember(began->epoch, *began);
  KeepFirst();
}

// What the control plane wants.

void Agent::Do(const control::Spawn& command) {
  restart_count_ = command.restart_count;
  if (const std::string why = WhyOutOfReach(spec_, command.store_host); !why.empty())
    return Remember(command.epoch, control::SpawnFailed{command.epoch, why});
  if (command.version.number == 0 && !command.version.kept) return link_.Spawn(command, "", "");
  background_.Run([this, command, spec = spec_] {
    const absl::StatusOr<std::string> code = PathOfCode(spec, command.version);
    const std::string root = code.ok() && !code->empty() ? CodeRoot(spec).value_or("") : "";
    return [this, command, code, root] {
      if (code.ok()) return link_.Spawn(command, root, *code);
      Remember(command.epoch, control::SpawnFailed{command.epoch, Message(code.status())});
    };
  });
}

void Agent::Do(const control::KeepCode& command) {
  background_.Run([this, version = command.version, spec = spec_] {
    const absl::StatusOr<std::string> path = PathOfCode(spec, version);
    const std::string error = path.ok() ? "" : fmt::format("node {}: {}", spec.node_name, Message(path.status()));
    return [this, said = control::CodeKept{version.number, error}] { listener_.say(control::EventBody(said)); };
  });
}

// Once it trains, so that it costs the start nothing; again in each epoch until it has a copy.
void Agent::KeepFirst() {
  if (!first_kept_.hash.empty() || std::exchange(keeping_first_, true)) return;
  background_.Run([this, spec = spec_, epoch = EpochId(watch_.epoch())] {
    return [this, said = KeepFirstCode(spec, epoch)] {
      keeping_first_ = false;
      first_kept_ = said;
      SayFirst();
    };
  });
}

void Agent::SayFirst() {
  if (first_kept_ != control::CodeKept()) listener_.say(control::EventBody(first_kept_));
}

void Agent::Do(const control::KillEpoch& command) {
  killing_ = command.epoch.value() == watch_.epoch();
  std::vector<int> suspects;  // of this node
  suspects.reserve(command.suspects.size());
  for (const RankId rank : command.suspects) suspects.push_back(rank.value() - spec_.place.first_rank);
  link_.Kill(command, suspects);
}

void Agent::Do(const control::LookClosely& look) {
  if (look.epoch.value() == watch_.epoch()) watch_.LookClosely(look.closely);
}

void Agent::Do(const control::Finish&) {
  finished_ = true;
  StopProbes();
}

void Agent::Do(const control::KeepStacks& command) {
  const std::string folder = fmt::format("{}/incident_{}", spec_.run_dir, command.incident);
  mkdir(folder.c_str(), 0700);
  background_.Run([this, spec = spec_, epoch = command.epoch, workers = watch_.workers(), folder] {
    const std::string path = folder + "/stacks.txt";
    RankStacks stacks = CollectStacks(spec, epoch.value(), workers);
    AddHelpers(spec, epoch.value(), workers, stacks);
    std::string text = StacksText(stacks, spec.node_name);
    const absl::Status written = WriteFileAtomically(path, text);
    const std::string where = spec.place.nodes > 1 ? spec.node_name + ":" + path : path;
    const bool tell =
        text.size() <= control::kMostBytesOfStacksSeen && spec.place.world_size <= control::kMostRanksOfStacksSeen;
    return [this, epoch, where = written.ok() ? where : "", text = tell ? std::move(text) : ""] {
      if (!text.empty()) listener_.say(control::StacksSeen{epoch, text});
      Remember(epoch, control::StacksKept{epoch, where});
    };
  });
}

// A coordinator of an older version leads no replay: nothing is found.
void Agent::Do(const control::Probe& command) {
  if (command.search != 0) return replaying_.Ready(spec_, command);
  if (command.rung == control::Rung::kReplay)
    return Remember(command.epoch, control::Probed{command.epoch, command.rung});
  probing_.Begin(spec_, command, [this](const control::Probed& answer) { Remember(answer.epoch, answer); });
  SayWhere();
}

// The job goes on, or is over.
void Agent::StopProbes() {
  probing_.Stop();
  replaying_.StopAll();
}

// Looking on.

void Agent::Tick() {
  const Nanos now = clock_.Now();
  records_.Drain();
  if (!ready_) return;
  TickDisk();
  commits_.Look(**link_.board());
  // After the end too: the last flush takes its time, and who is silent is taken for lost.
  if (now - observed_told_ >= ToNanos(kObservePeriod)) {
    observed_told_ = now;
    listener_.say(Observe());
  }
  if (finished_) return;
  for (const control::Alerted& alert : alerts_.Repeat(now)) listener_.say(alert);
  const ls_board& board = **link_.board();
  FollowLives();
  SayLoopBegins();
  if (watch_.epoch() != 0) {
    control::Samples samples = watch_.Take(board, now);
    samples.losses = losses_.Take(samples.epoch, LossesOf(watch_.epoch(), spec_, board, watch_.workers()));
    listener_.say(samples);
  }
  SayHolding();
  if (KeepsTrails(spec_) && !reading_trails_ && now - trails_read_ >= ToNanos(kTrailsPeriod)) SayCommunication();
  if (watch_.looks_closely() && !sampling_ && now - stacks_sampled_ >= ToNanos(kStackPeriod)) SampleStacks();
}

control::Progress Agent::progress() const {
  const BoardMap* map = link_.board();
  return map != nullptr ? watch_.ProgressNow(**map) : control::Progress{};
}

bool Agent::IsSteady() const {
  const BoardMap* map = link_.board();
  return map != nullptr && watch_.IsSteady(**map, clock_.Now());
}

bool Agent::HasWorkers() const {
  const std::vector<Worker>& workers = watch_.workers();
  return std::any_of(workers.begin(), workers.end(), [](const Worker& worker) { return !worker.exited; });
}

void Agent::SampleStacks() {
  sampling_ = true;
  stacks_sampled_ = clock_.Now();
  background_.Run([this, spec = spec_, epoch = watch_.epoch(), workers = watch_.workers()] {
    const RankStacks stacks = CollectStacks(spec, epoch, workers);
    return [this, epoch, samples = Samples(stacks, clock_.Now())] {
      sampling_ = false;
      listener_.say(control::Samples{EpochId(epoch), {}, samples, {}});
    };
  });
}

void Agent::SayCommunication() {
  reading_trails_ = true;
  trails_read_ = clock_.Now();
  background_.Run([this, spec = spec_, epoch = watch_.epoch()] {
    return [this, seen = control::CommunicationSeen{EpochId(epoch), TakeTrails(spec)}] {
      reading_trails_ = false;
      if (!seen.trails.empty()) listener_.say(seen);
    };
  });
}

void Agent::ReadStacks(RankId rank, const std::function<void(const std::string&)>& done) {
  std::vector<Worker> wanted = watch_.workers();
  std::erase_if(wanted, [&](const Worker& worker) { return GlobalRank(spec_, worker.rank) != rank || worker.exited; });
  if (wanted.empty()) return done(fmt::format("rank {} does not run now on node {}\n", rank.value(), spec_.node_name));
  background_.Run([spec = spec_, epoch = watch_.epoch(), wanted, done] {
    RankStacks stacks = CollectStacks(spec, epoch, wanted);
    AddHelpers(spec, epoch, wanted, stacks);
    return [done, text = StacksText(stacks)] { done(text); };
  });
}

control::Observed Agent::Observe() {
  control::Observed observed;
  observed.loss = std::nan("");
  observed.disk = flusher_.Observe();
  if (observed.disk) observed.disk->upload = uploader_.Observe();
  if (keeping_) observed.peers = keeping_->Observe();
  observed.start_method = spec_.place.node == control::kStandby ? link_.start_method() : start_method_;
  observed.log_dropped = Bytes{link_.dropped().log};
  observed.console_dropped = Bytes{link_.dropped().console + listener_.left_out()};
  const BoardMap* map = link_.board();
  if (map == nullptr) return observed;
  const ls_board& board = **map;
  for (const Worker& worker : watch_.workers()) {
    const ls_rank_block& block = board.rank[worker.rank];
    observed.ranks.push_back({GlobalRank(spec_, worker.rank), worker.pid, watch_.RankState(board, worker.rank),
                              Load(block.step), ToSeconds(Nanos{Load(block.step_time_ns)})});
    observed.checkpoints += static_cast<int64_t>(Load(block.copies));
    observed.checkpoints_skipped += static_cast<int64_t>(Load(block.skipped));
    observed.checkpoints_torn += static_cast<int64_t>(Load(block.torn));
    observed.checkpoint_blocked += ToSeconds(Nanos{static_cast<int64_t>(Load(block.blocked_ns))});
  }
  observed.records = static_cast<int64_t>(records_.kept());
  observed.records_dropped = static_cast<int64_t>(records_.dropped());
  observed.records_unwritten = static_cast<int64_t>(records_.not_kept());
  observed.loss = MeanLoss(board, watch_.workers());
  if (const auto& newest = commits_.Look(board)) {
    observed.committed = newest->point;
    if (newest->ended) observed.checkpoint_age = ToSeconds(clock_.Now() - *newest->ended);
  }
  return observed;
}

}  // namespace lockstep::agent
