// What an agent does with checkpoints: tells what is held here, publishes what is whole everywhere, finds what the next
// epoch may begin from, and has node 0's go to disk.
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>

#include "lockstep/agent/agent.h"
#include "lockstep/agent/points.h"
#include "lockstep/agent/replicas.h"
#include "lockstep/checkpoint/restore.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

// False: it is to stop.
bool Pause(Seconds seconds, const std::stop_token& stop) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  const std::chrono::duration<double> duration(seconds.value);
  std::condition_variable_any().wait_for(lock, stop, duration, [] { return false; });
  return !stop.stop_requested();
}

// Every rank has it, is writing it, or has not come to that step.
bool MayBecomeWhole(const ls_board& board, const ls_checkpoint& id) {
  for (uint32_t rank = 0; rank < board.ranks; ++rank)
    if (ls_rank_passed(&board.rank[rank], id)) return false;
  return true;
}

}  // namespace

// In memory, and at a peer.

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

void Agent::Do(const control::Commit& commit) {
  const ls_checkpoint id{commit.point.epoch.value(), commit.point.step};
  ls_board& board = **link_.board();
  const bool older = ls_newer(ls_published(&board), id);
  const bool is_over = commit.epoch.value() < Load(board.restore_for);  // the next one has its beginning already
  if (commit.epoch.value() != watch_.epoch() || is_over || (older && id.epoch != 0)) return;
  const ls_checkpoint newest = older ? ls_published(&board) : id;  // none yet: what the epoch began from stands
  const int64_t dead_step = std::max(commit.dead_step, Load(board.dead_step));
  const int64_t meet_from = std::max(commit.meet_from, Load(board.meet_from));
  const bool is_news = dead_step != Load(board.dead_step) || meet_from != Load(board.meet_from);
  if (ls_same(newest, ls_published(&board)) && !is_news) return;
  ls_publish(&board, newest, dead_step, meet_from);
  GiveUpKept();
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

// What the next epoch begins from.

void Agent::Do(const control::ChooseRestore& command) {
  StopProbes();
  if (const absl::Status door = link_.CheckDoor(); !door.ok()) {
    control::RestoreFound found{command.next, {}, {}};
    found.unfit = Message(door);
    found.as = NextPlace();
    return listener_.say(found);
  }
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
  const auto note = [this](const std::string& text) { background_.Post([this, text] { listener_.note(text); }); };
  const auto pause = [stop = background_.stopping()](Seconds seconds) { return Pause(seconds, stop); };
  const auto load = [not_above = ToPoint(question.not_above), place,
                     again = UntilItPassed(clock_, note, pause)](RunSpec spec) {
    spec.place = place;
    return spec.checkpoint_dir.empty() ? Loaded{} : LoadNewest(spec, not_above, again);
  };
  LoadAndSay(load, {question.next, {}, {}, question.not_above});
}

void Agent::Do(const control::FetchKept& question) {
  LoadAndSay([question, stop = background_.stopping()](const RunSpec& spec) { return LoadKept(spec, question, stop); },
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
  ls_publish(&board, {board.restore_epoch, board.restore_step}, -1, 0);
  __atomic_store_n(&board.restore_for, command.epoch.value(), __ATOMIC_RELEASE);
  if (keeping_) keeping_->GiveUp({EpochId(board.restore_epoch), board.restore_step}, -1, command.epoch);
}

// On disk.

void Agent::TickDisk() {
  ls_board& board = **link_.board();
  for (const control::PartWritten& part : part_writer_.Tick(board))
    spec_.place.node == 0 ? flusher_.Hear(part) : listener_.say(part);
  if (write_next_ && BeginPart(*write_next_)) write_next_.reset();
  flusher_.Tick(board);
  uploader_.Tick(flusher_.settled());
}

void Agent::Do(const control::WritePart& command) {
  flusher_.Begun(ToPoint(command.point));
  if (!BeginPart(command)) write_next_ = command;
}

bool Agent::BeginPart(const control::WritePart& command) {
  KeptImages kept;
  for (const control::Ward& ward : command.wards)
    kept.push_back(keeping_ ? keeping_->Find(ward.node, command.point) : nullptr);
  return part_writer_.Begin(command, **link_.board(), link_.buffers(), kept);
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

}  // namespace lockstep::agent
