#include "lockstep/agent/agent.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <memory>

#include "lockstep/agent/evidence.h"
#include "lockstep/agent/exception.h"
#include "lockstep/checkpoint/restore.h"
#include "lockstep/client/commit.h"
#include "lockstep/client/life.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kStackPeriod{1.0};      // while a stall is on
constexpr Bytes kRecordLimit{256 << 20};  // four million steps

double MeanLoss(const ls_board& board, const std::vector<Worker>& workers) {
  double sum = 0;
  int known = 0;
  for (const Worker& worker : workers) {
    const double loss = std::bit_cast<double>(Load(board.rank[worker.rank].loss_bits));
    if (std::isnan(loss)) continue;
    sum += loss;
    ++known;
  }
  return known > 0 ? sum / known : std::nan("");
}

// When the last rank had finished the step after which `point` was taken; unknown once a rank has gone on: then its
// newest step stands for it.
Nanos CommittedAt(const ls_board& board, const std::vector<Worker>& workers) {
  Nanos oldest;
  for (const Worker& worker : workers) {
    const Nanos end{Load(board.rank[worker.rank].step_end_ns)};
    oldest = oldest.value == 0 ? end : std::min(oldest, end);
  }
  return oldest;
}

}  // namespace

Agent::Agent(RunSpec spec, const detect::Policy& policy, Poller& poller, const Clock& clock, Listener listener)
    : spec_(std::move(spec)),
      poller_(poller),
      clock_(clock),
      listener_(std::move(listener)),
      link_(spec_, poller_,
            {.hello = [this](const StarterLink::Hello& hello) { TakeHello(hello); },
             .spawned =
                 [this](uint64_t epoch, const std::vector<pid_t>& pids, bool by_zygote) {
                   start_method_ = by_zygote ? "zygote" : "exec";
                   WorkersRun(epoch, pids);
                 },
             .spawn_failed =
                 [this](uint64_t epoch, const std::string& error) {
                   listener_.event(control::SpawnFailed{EpochId(epoch), error});
                 },
             .exited = [this](uint64_t epoch, const Worker& worker) { WorkerExited(epoch, worker); },
             .stopped = [this](uint64_t epoch) { listener_.event(control::EpochStopped{EpochId(epoch)}); },
             .note = [this](const std::string& text) { listener_.note(text); },
             .ring = [this](int rank, const Fd& ring) { records_.Attach(rank, ring); },
             .output = [this](int rank, int stream, std::string_view data) { listener_.output(rank, stream, data); },
             .lost = [this] { StarterLost(); }}),
      watch_(policy, spec_.ranks),
      records_(spec_.run_dir + "/records", kRecordLimit),
      flusher_(spec_, clock_, [this](const std::string& text) { listener_.note(text); }),
      exit_watch_(poller_, [this](int rank) { WorkerEnds(rank); }),
      background_(poller_) {}

absl::Status Agent::Launch() { return link_.Launch(); }
absl::Status Agent::Adopt() { return link_.Connect(); }

void Agent::Execute(const control::Command& command) {
  std::visit([this](const auto& body) { Do(body); }, command);
}

// What the starter says.

void Agent::TakeHello(const StarterLink::Hello& hello) {
  if (link_.board() == nullptr) return listener_.lost();
  ls_unpin(link_.board()->get());  // of an agent that was killed
  if (!hello.workers.empty()) start_method_ = hello.zygote ? "zygote" : "exec";
  // An exit that the control plane has not heard of is told below, and is no exit to the watch before.
  std::vector<Worker> workers = hello.workers;
  for (Worker& own : workers) own.exited = own.exited && listener_.state().exits.contains(RankId(own.rank));
  if (!workers.empty() && !hello.stopped) watch_.AdoptEpoch(hello.epoch, workers, **link_.board());
  listener_.ready();
  for (const Worker& worker : hello.workers) {
    const bool known = listener_.state().exits.contains(RankId(worker.rank));
    if (worker.exited && !known) WorkerExited(hello.epoch, worker);
  }
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
    workers.push_back(worker);
  }
  watch_.BeginEpoch(epoch, workers);
  followed_ = 0;
  listener_.event(control::EpochSpawned{EpochId(epoch)});
}

// Large processes take long to end: their failure is known as soon as it begins.
void Agent::WorkerEnds(int rank) {
  for (Worker worker : watch_.workers()) {
    const std::optional<int> status = worker.rank == rank ? FailureBegun(worker.pid) : std::nullopt;
    if (!status) continue;
    worker.SetStatus(*status, clock_.Now());
    return WorkerExited(listener_.state().epoch.value(), worker);
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
  exit_watch_.Follow(std::move(lives));
}

std::optional<ExceptionNote> Agent::NoteOf(uint64_t epoch, const Worker& worker) {
  if (auto note = ReadException(ErrorPath(spec_, epoch, worker.rank))) return note;
  const auto recorded = ReadTorchError(TorchErrorPath(spec_, epoch, listener_.state().restarts, worker.rank));
  if (recorded.ok()) return *recorded;
  if (!absl::IsNotFound(recorded.status()))
    listener_.note(fmt::format("rank {}'s error file is left aside: {}", worker.rank, Message(recorded.status())));
  return std::nullopt;
}

void Agent::WorkerExited(uint64_t epoch, const Worker& worker) {
  if (watch_.HasExited(worker)) return;  // told when it began to end
  // A job of millisecond steps may have begun its loop, and died, between two ticks.
  if (link_.board() != nullptr) {
    for (const control::EventBody& begun : watch_.LoopBegins(**link_.board(), listener_.state()))
      listener_.event(begun);
  }
  watch_.Exited(worker);
  control::RankExited event{EpochId(epoch),  RankId(worker.rank), {worker.code, worker.signal}, {}, {},
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
  if (link_.board() != nullptr) event.progress = watch_.ProgressNow(**link_.board());
  listener_.event(std::move(event));
}

// What the control plane wants.

void Agent::Do(const control::Spawn& command) { link_.Spawn(command.epoch.value(), command.restart_count); }

void Agent::Do(const control::KillEpoch& command) {
  culprit_deadline_ = Nanos{};
  link_.Kill(command.epoch.value(), command.grace, command.signal);
}

void Agent::Do(const control::WaitForCulprit& command) {
  waiting_for_culprit_ = command;
  culprit_deadline_ = clock_.Now() + ToNanos(command.at_most);
}

void Agent::Do(const control::KeepStacks& command) {
  const std::string folder = fmt::format("{}/incident_{}", spec_.run_dir, command.incident);
  mkdir(folder.c_str(), 0700);
  background_.Run([this, spec = spec_, epoch = command.epoch, workers = watch_.workers(), folder] {
    const std::string path = folder + "/stacks.txt";
    const RankStacks stacks = CollectStacks(spec, epoch.value(), workers);
    const absl::Status written = WriteFileAtomically(path, StacksText(stacks));
    return [this, epoch, path = written.ok() ? path : ""] { listener_.event(control::StacksKept{epoch, path}); };
  });
}

void Agent::Do(const control::ChooseRestore& command) {
  if (link_.board() == nullptr) return listener_.event(control::RestoreChosen{command.next, {}, {}});
  auto mapped =
      std::make_shared<MappedBuffers>(spec_.ranks, link_.buffers());  // shared: std::function must be copyable
  background_.Run([this, next = command.next, spec = spec_, board = link_.board()->get(), mapped] {
    const checkpoint::RestoreChoice choice = checkpoint::ChooseRestore(*board, mapped->slots());
    auto loaded = std::make_shared<Loaded>();  // shared: std::function must be copyable
    if (!choice.point && !spec.checkpoint_dir.empty()) *loaded = LoadNewest(spec);
    return [this, next, choice, loaded] { Restored(next, choice, *loaded); };
  });
}

void Agent::Restored(EpochId next, const checkpoint::RestoreChoice& choice, Loaded& loaded) {
  control::RestoreChosen event{next, {}, choice.rejected};
  if (choice.point) event.point = control::CheckpointId{choice.point->epoch, choice.point->step.value()};
  for (const std::string& sentence : loaded.rejected) listener_.note("not loaded: " + sentence);
  event.rejected.insert(event.rejected.end(), loaded.rejected.begin(), loaded.rejected.end());
  if (loaded.manifest) {
    PublishLoaded(*loaded.manifest, std::move(loaded.buffers));
    event.point = control::CheckpointId{loaded.manifest->point.epoch, loaded.manifest->point.step.value()};
  }
  listener_.event(std::move(event));
}

void Agent::PublishLoaded(const checkpoint::Manifest& manifest, std::vector<RankBuffers> buffers) {
  const checkpoint::Point& point = manifest.point;
  for (size_t rank = 0; rank < buffers.size(); ++rank) link_.Give(static_cast<int>(rank), std::move(buffers[rank]));
  MarkLoaded(**link_.board(), manifest);
  flusher_.Loaded(point);
  listener_.note(fmt::format("going on from {}/{}", spec_.checkpoint_dir, checkpoint::DirectoryName(point)));
}

void Agent::Do(const control::PublishRestore& command) {
  if (link_.board() == nullptr) return;
  ls_board& board = **link_.board();
  board.restore_epoch = command.point ? command.point->epoch.value() : 0;
  board.restore_step = command.point ? command.point->step : -1;
  __atomic_store_n(&board.restore_for, command.epoch.value(), __ATOMIC_RELEASE);
}

// Looking on.

void Agent::Tick() {
  const Nanos now = clock_.Now();
  records_.Drain();
  if (culprit_deadline_.value != 0 && now >= culprit_deadline_) {
    culprit_deadline_ = Nanos{};
    listener_.event(control::SecondaryGraceOver{waiting_for_culprit_.epoch});
  }
  if (link_.board() == nullptr) return;
  flusher_.Tick(**link_.board(), link_.buffers());
  if (listener_.state().mode == control::Mode::kFinished) return;
  FollowLives();
  for (const control::EventBody& event : watch_.Tick(**link_.board(), listener_.state(), now)) listener_.event(event);
  if (watch_.wants_stacks() && !sampling_ && now - stacks_sampled_ >= ToNanos(kStackPeriod)) SampleStacks();
}

void Agent::FlushLast(std::function<void()> done) {
  if (link_.board() == nullptr) return done();
  flusher_.FlushLast(std::move(done));
}

void Agent::GiveUpFlush() {
  if (link_.board() != nullptr) flusher_.GiveUp(**link_.board(), "given up at a second signal");
}

void Agent::SampleStacks() {
  sampling_ = true;
  stacks_sampled_ = clock_.Now();
  const uint64_t epoch = listener_.state().epoch.value();
  background_.Run([this, spec = spec_, epoch, workers = watch_.workers()] {
    const RankStacks stacks = CollectStacks(spec, epoch, workers);
    return [this, epoch, samples = Samples(stacks, clock_.Now())] {
      sampling_ = false;
      if (listener_.state().epoch.value() != epoch) return;
      for (const detect::StackSample& sample : samples) watch_.Add(sample);
    };
  });
}

void Agent::ReadStacks(RankId rank, const std::function<void(const std::string&)>& done) {
  std::vector<Worker> wanted = watch_.workers();
  std::erase_if(wanted, [&](const Worker& worker) { return worker.rank != rank.value() || worker.exited; });
  if (wanted.empty()) return done(fmt::format("rank {} does not run now\n", rank.value()));
  background_.Run([spec = spec_, epoch = watch_.epoch(), wanted, done] {
    return [done, text = StacksText(CollectStacks(spec, epoch, wanted))] { done(text); };
  });
}

control::Observed Agent::Observe() const {
  control::Observed observed;
  observed.loss = std::nan("");
  observed.disk = flusher_.Observe();
  observed.start_method = start_method_;
  observed.log_dropped = Bytes{link_.dropped().log};
  observed.console_dropped = Bytes{link_.dropped().console};
  const BoardMap* map = const_cast<StarterLink&>(link_).board();
  if (map == nullptr) return observed;
  const ls_board& board = **map;
  for (const Worker& worker : watch_.workers()) {
    const ls_rank_block& block = board.rank[worker.rank];
    observed.ranks.push_back({RankId(worker.rank), worker.pid, watch_.RankState(board, worker.rank), Load(block.step),
                              ToSeconds(Nanos{Load(block.step_time_ns)})});
    observed.checkpoints += static_cast<int64_t>(Load(block.copies));
    observed.checkpoints_skipped += static_cast<int64_t>(Load(block.skipped));
    observed.checkpoints_torn += static_cast<int64_t>(Load(block.torn));
    observed.checkpoint_blocked += ToSeconds(Nanos{static_cast<int64_t>(Load(block.blocked_ns))});
  }
  observed.records = static_cast<int64_t>(records_.kept());
  observed.records_dropped = static_cast<int64_t>(records_.dropped());
  observed.loss = MeanLoss(board, watch_.workers());
  const ls_checkpoint committed = ls_newest_committed(&board, 0);
  if (committed.epoch != 0) {
    observed.committed = control::CheckpointId{EpochId(committed.epoch), committed.step};
    observed.checkpoint_age = ToSeconds(clock_.Now() - CommittedAt(board, watch_.workers()));
  }
  return observed;
}

}  // namespace lockstep::agent
