#include "lockstep/agent/agent.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "lockstep/agent/code_copy.h"
#include "lockstep/agent/collectors.h"
#include "lockstep/agent/evidence.h"
#include "lockstep/agent/exception.h"
#include "lockstep/agent/points.h"
#include "lockstep/agent/replicas.h"
#include "lockstep/checkpoint/restore.h"
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
    const double loss = std::bit_cast<double>(Load(board.rank[worker.rank].loss_bits));
    if (std::isnan(loss)) continue;
    sum += loss;
    ++known;
  }
  return known > 0 ? sum / known : std::nan("");
}

// The step first: a loss may be newer than its step, and never older.
std::vector<LossWatch::Seen> LossesNow(const RunSpec& spec, const ls_board& board, const std::vector<Worker>& workers) {
  std::vector<LossWatch::Seen> seen;
  for (const Worker& worker : workers) {
    const ls_rank_block& block = board.rank[worker.rank];
    if (Load(block.epoch) != Load(board.epoch)) continue;
    const int64_t step = Load(block.step);
    seen.push_back({GlobalRank(spec, worker.rank), step, std::bit_cast<double>(Load(block.loss_bits))});
  }
  return seen;
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

// Every rank has it, is writing it, or has not come to that step.
bool MayBecomeWhole(const ls_board& board, const ls_checkpoint& id) {
  for (uint32_t rank = 0; rank < board.ranks; ++rank)
    if (ls_rank_passed(&board.rank[rank], id)) return false;
  return true;
}

}  // namespace

Agent::Agent(RunSpec spec, Poller& poller, const Clock& clock, Listener listener)
    : spec_(std::move(spec)),
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
             .stopped = [this](uint64_t epoch) { Remember(EpochId(epoch), control::EpochStopped{EpochId(epoch)}); },
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
  inspection_.emplace(poller_, clock_, inspect::Settings(), inspect::Where{inspect::Tree(), std::move(paths)},
                      [this](const inspect::Alert& alert) { HearAlert(alert); });
}

void Agent::HearAlert(const inspect::Alert& alert) {
  listener_.note(fmt::format("{}: {}", spec_.node_name, inspect::AlertText(alert)));
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
void Agent::Do(const control::Command& command) {
  std::visit([this](const auto& body) { Do(body); }, command);
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
  if (link_.board() == nullptr) return listener_.lost();
  ls_unpin(link_.board()->get());  // of an agent that was killed
  if (!hello.workers.empty()) {
    start_method_ = hello.zygote ? "zygote" : "exec";
    restart_count_ = hello.restart_count;
    std::vector<Worker> workers = hello.workers;
    for (Worker& own : workers) own.exited = false;  // told below, in full
    watch_.BeginEpoch(hello.epoch, workers);
    Remember(EpochId(hello.epoch), control::EpochSpawned{EpochId(hello.epoch)});
    for (const Worker& worker : hello.workers)
      if (worker.exited) WorkerExited(hello.epoch, worker);
    SayLoopBegins();
  }
  ready_ = true;
  SayAll();
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
    SayHolding();  // the last word on what it leaves
  }
  Remember(EpochId(epoch), event);
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

// Once it trains, so that it costs the start nothing.
void Agent::KeepFirst() {
  if (std::exchange(first_code_kept_, true)) return;
  background_.Run([spec = spec_] {
    KeepFirstCode(spec);
    return [] {};
  });
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

void Agent::Do(const control::Commit& commit) {
  const ls_checkpoint id{commit.point.epoch.value(), commit.point.step};
  ls_board& board = **link_.board();
  const bool older = ls_newer(ls_published(&board), id);
  const bool is_over = commit.epoch.value() < Load(board.restore_for);  // the next one has its beginning already
  if (commit.epoch.value() != watch_.epoch() || is_over || (older && id.epoch != 0)) return;
  const ls_checkpoint newest = older ? ls_published(&board) : id;  // none yet: what the epoch began from stands
  if (ls_same(newest, ls_published(&board)) && commit.dead_step <= Load(board.dead_step)) return;
  ls_publish(&board, newest, std::max(commit.dead_step, Load(board.dead_step)));
  GiveUpKept();
}

void Agent::Do(const control::Finish&) {
  finished_ = true;
  StopProbes();
}

void Agent::GiveUpKept() {
  if (!keeping_) return;
  const ls_board& board = **link_.board();
  const ls_checkpoint published = ls_published(&board);
  keeping_->GiveUp({EpochId(published.epoch), published.step}, Load(board.dead_step), EpochId(watch_.epoch()));
}

void Agent::Do(const control::KeepWith& keeper) {
  if (keeping_) keeping_->SendTo(keeper);
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

void Agent::Do(const control::ChooseRestore& command) {
  StopProbes();
  if (coming_ && coming_->asked == command.next) {
    if (!coming_->found) return;
    coming_->found->as = NextPlace();
    return listener_.say(*coming_->found);
  }
  if (coming_) coming_->asked = command.next;
  auto mapped =
      std::make_shared<MappedBuffers>(spec_.ranks, link_.buffers());  // shared: std::function must be copyable
  const bool moves = coming_.has_value();
  const bool one_is_enough = spec_.place.nodes == 1 && command.poisoned.empty();
  background_.Run(
      [this, next = command.next, one_is_enough, moves, node = spec_.place.node, board = link_.board()->get(), mapped] {
        // One that this node has may be missing on another; alone, the newest is enough.
        const checkpoint::RestoreChoices choices =
            checkpoint::FindRestores(*board, mapped->slots(), one_is_enough ? 1 : LS_SLOTS);
        control::RestoreFound found{next, {}, choices.rejected};
        for (const checkpoint::Point& point : choices.points) found.points.push_back(ToId(point));
        // Where the world stays as it is nobody asks for it, and it takes its time.
        if (moves) found.replicas = ReplicasOf(*board, mapped->slots(), node, choices.points);
        return [this, found, moves]() mutable {
          if (keeping_) found.kept = keeping_->Holds();
          if (keeping_)
            for (const control::Replica& replica : keeping_->Replicas()) found.replicas.push_back(replica);
          const bool holds = Load((*link_.board())->restore_for) != 0;
          found.held = {holds ? spec_.place.node : -1, spec_.place.nodes};
          if (moves != coming_.has_value()) return;  // it is asked anew
          found.as = NextPlace();
          if (moves) coming_->found = found;
          listener_.say(found);
        };
      });
}

void Agent::Do(const control::ChooseOnDisk& question) {
  // For the world to come.
  const control::Place place = coming_ ? coming_->place : spec_.place;
  const auto load = [not_above = ToPoint(question.not_above), place](RunSpec spec) {
    spec.place = place;
    return spec.checkpoint_dir.empty() ? Loaded{} : LoadNewest(spec, not_above);
  };
  LoadAndSay(load, {question.next, {}, {}, question.not_above});
}

void Agent::Do(const control::FetchKept& question) {
  LoadAndSay([question](const RunSpec& spec) { return LoadKept(spec, question); },
             {.epoch = question.next, .points = {}, .rejected = {}, .fetched = question.point});
}

// In the world where the coming epoch begins.
control::HeldAs Agent::NextPlace() const {
  const control::Place& place = coming_ ? coming_->place : spec_.place;
  return {place.node, place.nodes};
}

// All nodes must have the same one before it is given to the ranks.
void Agent::LoadAndSay(std::function<Loaded(const RunSpec&)> load, const control::RestoreFound& answer) {
  background_.Run([this, answer, as = NextPlace(), spec = spec_, load = std::move(load)] {
    auto loaded = std::make_shared<Loaded>(load(spec));  // shared: std::function must be copyable
    return [this, found = answer, as, loaded]() mutable {
      if (as != NextPlace()) return;  // it is asked anew
      found.as = as;
      found.rejected = loaded->rejected;
      found.unfit = loaded->unfit;
      if (!loaded->unfit.empty()) listener_.note("not loaded: " + loaded->unfit);
      for (const std::string& sentence : loaded->rejected) listener_.note("not loaded: " + sentence);
      if (loaded->point) found.points = {ToId(*loaded->point)};
      loaded_ = std::move(*loaded);
      listener_.say(found);
    };
  });
}

void Agent::PublishLoaded(Loaded loaded) {
  for (size_t rank = 0; rank < loaded.buffers.size(); ++rank)
    link_.Give(static_cast<int>(rank), std::move(loaded.buffers[rank]));
  MarkLoaded(**link_.board(), loaded, static_cast<uint32_t>(spec_.place.world_size));
  if (loaded.on_disk) flusher_.Loaded(*loaded.point);
  listener_.note(fmt::format("going on from {}", loaded.from));
}

// No worker runs. The checkpoint that was chosen is the new world's from now on; whatever else was written under the
// old numbers is given up, so that two worlds never mix.
void Agent::TakeNextPlace(const std::optional<control::CheckpointId>& point) {
  spec_.place = std::exchange(coming_, std::nullopt)->place;
  link_.Seat(spec_.place);
  alerts_.Seat(spec_.place.node);
  said_.clear();
  if (keeping_) keeping_->BeginAnew();
  if (!keeping_ && OpenKeeping().ok()) SayWhere();
  const ls_checkpoint id = point ? ls_checkpoint{point->epoch.value(), point->step} : ls_checkpoint{0, -1};
  AdoptSlots(**link_.board(), id, static_cast<uint32_t>(spec_.place.world_size));
  TakeDisk();
  listener_.moved();
}

void Agent::TakeDisk() {
  if (const absl::Status opened = OpenDisk(); !opened.ok())
    listener_.note(fmt::format("no checkpoints go to disk: {}", Message(opened)));
}

void Agent::Do(const control::PublishRestore& command) {
  ls_board& board = **link_.board();
  if (command.epoch.value() <= Load(board.restore_for)) return;
  if (coming_) TakeNextPlace(command.point);
  std::optional<Loaded> loaded = std::exchange(loaded_, std::nullopt);
  board.restore_ranks = 0;
  if (loaded && loaded->point && command.point == ToId(*loaded->point)) PublishLoaded(*std::move(loaded));
  board.restore_epoch = command.point ? command.point->epoch.value() : 0;
  board.restore_step = command.point ? command.point->step : -1;
  ls_publish(&board, {board.restore_epoch, board.restore_step}, -1);
  __atomic_store_n(&board.restore_for, command.epoch.value(), __ATOMIC_RELEASE);
  if (keeping_) keeping_->GiveUp({EpochId(board.restore_epoch), board.restore_step}, -1, command.epoch);
}

// Looking on.

void Agent::Tick() {
  const Nanos now = clock_.Now();
  records_.Drain();
  if (!ready_) return;
  TickDisk();
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
    samples.losses = losses_.Take(samples.epoch, LossesNow(spec_, board, watch_.workers()));
    listener_.say(samples);
  }
  SayHolding();
  if (KeepsTrails(spec_) && !reading_trails_ && now - trails_read_ >= ToNanos(kTrailsPeriod)) SayCommunication();
  if (watch_.looks_closely() && !sampling_ && now - stacks_sampled_ >= ToNanos(kStackPeriod)) SampleStacks();
}

// Kept by another node, or about to be. What is older than this epoch is known to be whole everywhere.
bool Agent::IsKept(const control::CheckpointId& id) {
  if (!keeping_ || id.epoch.value() != watch_.epoch() || keeping_->IsKept(id)) return true;
  if (!mapped_ || mapped_generation_ != link_.buffers_generation()) {
    mapped_ = std::make_shared<MappedBuffers>(spec_.ranks, link_.buffers());
    mapped_generation_ = link_.buffers_generation();
  }
  keeping_->Offer(id, **link_.board(), mapped_);
  return keeping_->IsKept(id);
}

// Of one node alone, the ranks see for themselves what is whole.
void Agent::SayHolding() {
  if (spec_.place.nodes == 1 || watch_.epoch() == 0) return;
  const ls_board& board = **link_.board();
  control::Holding holding{EpochId(watch_.epoch()), {}, {}, std::numeric_limits<int64_t>::max()};
  // First what was passed, then what is there: so nothing that is there can be missing from the second look.
  for (const Worker& worker : watch_.workers()) {
    const ls_rank_block& block = board.rank[worker.rank];
    const bool joined = Load(block.epoch) == watch_.epoch();
    holding.passed = std::min(holding.passed, joined ? Load(block.attempted_step) : -1);
  }
  for (const ls_slot& slot : board.rank[0].slot) {
    const ls_slot_view view = ls_slot_read(&slot);
    if (ls_slot_is_free(view)) continue;
    const control::CheckpointId id{EpochId(view.id.epoch), view.id.step};
    if (view.state == LS_SLOT_DONE && ls_committed(&board, view.id)) {
      (IsKept(id) ? holding.points : holding.coming).push_back(id);
    } else if (view.id.epoch == watch_.epoch() && MayBecomeWhole(board, view.id)) {
      holding.coming.push_back(id);
    }
  }
  if (holding == holding_) return;
  holding_ = holding;
  listener_.say(holding);
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

// Checkpoints on disk.

void Agent::TickDisk() {
  ls_board& board = **link_.board();
  if (const std::optional<control::PartWritten> part = part_writer_.Tick(board))
    spec_.place.node == 0 ? flusher_.Hear(*part) : listener_.say(*part);
  if (write_next_ && part_writer_.Begin(write_next_->point, board, link_.buffers())) write_next_.reset();
  flusher_.Tick(board);
  uploader_.Tick(flusher_.settled());
}

void Agent::Do(const control::WritePart& command) {
  flusher_.Begun(ToPoint(command.point));
  if (!part_writer_.Begin(command.point, **link_.board(), link_.buffers())) write_next_ = command;
}

void Agent::Do(const control::DiskDone&) {
  disk_done_ = true;
  if (spec_.place.node != 0 && flushed_last_) LeaveDisk();
}

void Agent::FlushLast(std::function<void()> done) {
  flushed_last_ = std::move(done);
  if (coming_) {  // a part of what is in memory is lost with its node, and nobody would write it
    if (!spec_.checkpoint_dir.empty()) listener_.note("no last checkpoint goes to disk: a node of its world is gone");
    return LeaveDisk();
  }
  const bool has_part = !spec_.checkpoint_dir.empty() && spec_.place.node != control::kStandby;
  if (link_.board() == nullptr || (spec_.place.node != 0 && (disk_done_ || !has_part))) return LeaveDisk();
  if (spec_.place.node == 0) flusher_.FlushLast([this] { uploader_.UploadLast([this] { LeaveDisk(); }); });
}

void Agent::LeaveDisk() {
  if (spec_.place.node == 0) listener_.say(control::DiskDone{});
  if (flushed_last_) std::exchange(flushed_last_, nullptr)();
}

void Agent::GiveUpFlush() {
  const std::string why = "given up at a second signal";
  part_writer_.GiveUp(why);
  flusher_.GiveUp(why);
  uploader_.GiveUp(why);
  if (spec_.place.node != 0 && flushed_last_) LeaveDisk();
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

control::Observed Agent::Observe() const {
  control::Observed observed;
  observed.loss = std::nan("");
  observed.disk = flusher_.Observe();
  if (observed.disk) observed.disk->upload = uploader_.Observe();
  if (keeping_) observed.peers = keeping_->Observe();
  observed.start_method = start_method_;
  observed.log_dropped = Bytes{link_.dropped().log};
  observed.console_dropped = Bytes{link_.dropped().console};
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
  observed.loss = MeanLoss(board, watch_.workers());
  const ls_checkpoint committed = ls_committed_here(&board);
  if (committed.epoch != 0) {
    observed.committed = control::CheckpointId{EpochId(committed.epoch), committed.step};
    observed.checkpoint_age = ToSeconds(clock_.Now() - CommittedAt(board, watch_.workers()));
  }
  return observed;
}

}  // namespace lockstep::agent
