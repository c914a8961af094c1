#include "lockstep/control/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"

namespace lockstep::control {
namespace {

// Only progress marks are given up beyond this; all other events are rare and must be in the journal one day.
constexpr size_t kMaxWaiting = 1'000;
constexpr Seconds kTryAgain{0.1};  // each try takes along all that wait
constexpr int kPatience = 4;       // times as long as a try took: nobody is heard while it lasts

// Text of foreign origin (an exception's message) may hold bytes that are not UTF-8.
std::string Encoded(const EventBody& body) { return OneLine(ToJson(body)); }

absl::StatusOr<EventBody> Decoded(const std::string& type, const std::string& text) {
  const Json json = ParseJson(text);
  if (json.is_discarded()) return DataLoss("{}: the payload is not JSON", type);
  return EventFromJson(type, json);
}

bool IsResize(const Command& command) { return std::holds_alternative<Resize>(command); }

// Who is out of a job is out for good, and who has a place holds what belongs to it.
bool ChangesPlaces(const Command& command) {
  return std::holds_alternative<Seat>(command) || std::holds_alternative<Vacate>(command) || IsResize(command);
}

absl::Status CheckSpec(const EventBody& body) {
  const JobStarted* started = std::get_if<JobStarted>(&body);
  if (!started) return absl::OkStatus();
  const JobSpec& spec = started->spec;
  if (spec.ranks < 1) return InvalidArgument("a job needs at least 1 rank, found {}", spec.ranks);
  if (spec.max_restarts < 0)
    return InvalidArgument("the restart budget must be at least 0, found {}", spec.max_restarts);
  if (spec.first_epoch.value() < 1) return InvalidArgument("the first epoch must be at least 1, found 0");
  if (spec.no_progress_limit < 1)
    return InvalidArgument("the limit of restarts without progress must be at least 1, found {}",
                           spec.no_progress_limit);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Command>> Coordinator::Handle(const EventBody& body) {
  if (std::holds_alternative<Tick>(body)) return HandleTick();
  if (!holds()) return Decide(body);
  if (std::holds_alternative<StopAsked>(body)) stop_ = body;
  if (std::holds_alternative<Drilled>(body)) drills_.push_back(body);
  return std::vector<Command>();
}

// A job that is to end needs no place, and gives none away that the journal does not have: the stop comes next. Where
// nodes count anew nothing of the job runs, and it ends here and now: with the numbers that the state has.
absl::StatusOr<std::vector<Command>> Coordinator::HandleTick() {
  if (!holds())
    for (const EventBody& drill : std::exchange(drills_, {})) LS_RETURN_IF_ERROR(Decide(drill).status());
  if (!holds() && stop_) return Decide(*std::exchange(stop_, std::nullopt));
  if (!waiting_.empty() || sync_due_) LS_RETURN_IF_ERROR(Write(false));
  if (in_vain() && !stop_ && !is_lost_) return std::vector<Command>();
  const bool ends = in_vain() && !is_lost_;
  const bool counts_anew = std::any_of(held_.begin(), held_.end(), IsResize);
  if (ends && !counts_anew) std::erase_if(held_, ChangesPlaces);
  std::vector<Command> commands = std::exchange(held_, {});
  if (!ends || !counts_anew) return commands;
  LS_ASSIGN_OR_RETURN(const std::vector<Command> last, Decide(*std::exchange(stop_, std::nullopt)));
  commands.insert(commands.end(), last.begin(), last.end());
  return commands;
}

absl::StatusOr<std::vector<Command>> Coordinator::Decide(const EventBody& body) {
  LS_RETURN_IF_ERROR(CheckSpec(body));
  // What is stepped is what the journal holds, read back: a replay cannot differ.
  store::Event row{clock_.Now(), clock_.WallNow(), TypeName(body), Encoded(body)};
  LS_ASSIGN_OR_RETURN(EventBody read_back, Decoded(row.type, row.payload));
  std::vector<Command> commands = Step(state_, Event{row.at, row.wall, std::move(read_back)});
  const bool changes_places = std::any_of(commands.begin(), commands.end(), ChangesPlaces);
  sync_due_ = sync_due_ || changes_places;
  Keep(std::move(row));
  // All ranks of a large job end at once, and an append may take a journal across a network half a millisecond. Agents
  // tell the next leader again what this one had not written.
  const bool ends = state_.mode == Mode::kFinished;
  const bool can_wait = std::holds_alternative<RankExited>(body) && commands.empty() && !ends;
  if (!can_wait) LS_RETURN_IF_ERROR(Write(true));
  if (changes_places && in_vain() && !is_lost_) Hold(commands);
  return commands;
}

// The ranks may be killed meanwhile. All else tells somebody of it.
void Coordinator::Hold(std::vector<Command>& commands) {
  const auto first = std::stable_partition(commands.begin(), commands.end(), [](const Command& command) {
    return std::holds_alternative<KillEpoch>(command);
  });
  held_.assign(std::make_move_iterator(first), std::make_move_iterator(commands.end()));
  commands.erase(first, commands.end());
  Log(LogLevel::kWarning, "the nodes of the job change, and its journal must have that first: the job waits for it");
}

void Coordinator::Keep(store::Event row) {
  const bool can_be_spared = row.type == TypeName(ProgressSeen{});
  if (can_be_spared && waiting_.size() >= kMaxWaiting) {
    ++events_dropped_;
  } else {
    waiting_.push_back(std::move(row));
  }
}

// An error: the journal is not ours any more. Else in_vain() says whether it has all now.
absl::Status Coordinator::Write(bool at_event) {
  const Nanos now = clock_.Now();
  if (in_vain() && now - tried_ < pause_ && state_.mode != Mode::kFinished) return absl::OkStatus();
  absl::Status status = waiting_.empty() ? absl::OkStatus() : journal_.Append(waiting_);
  if (status.ok()) waiting_.clear();
  if (status.ok() && sync_due_) status = journal_.Sync();
  if (absl::IsFailedPrecondition(status)) return status;
  if (status.ok()) {
    NoteSuccess();
    return status;
  }
  journal_errors_ += at_event ? 1 : 0;
  is_lost_ = absl::IsDataLoss(status);
  NoteFailure(status);
  pause_ = std::max(ToNanos(kTryAgain), Nanos{kPatience * (clock_.Now() - now).value});
  tried_ = clock_.Now();
  return absl::OkStatus();
}

void Coordinator::NoteFailure(const absl::Status& status) {
  if (!in_vain()) Log(LogLevel::kWarning, "training goes on, but the journal cannot be written: {}", Message(status));
  failure_ = Message(status);
}

std::string Coordinator::WhyItHolds() const {
  if (!holds()) return "";
  return fmt::format(
      "the job waits for its journal, which must have the change of its nodes first, and cannot be written: {}",
      failure_);
}

void Coordinator::NoteSuccess() {
  if (in_vain()) Log(LogLevel::kWarning, "the journal can be written again, and has the events that waited");
  tried_ = Nanos{};
  sync_due_ = false;
}

absl::StatusOr<State> ReplayEvents(const std::vector<store::Event>& rows) {
  State state;
  for (const store::Event& row : rows) {
    absl::StatusOr<EventBody> body = Decoded(row.type, row.payload);
    if (!body.ok()) return DataLoss("event {} of the journal cannot be read: {}", row.sequence, Message(body.status()));
    Step(state, Event{row.at, row.wall, *std::move(body)});
  }
  return state;
}

absl::StatusOr<Coordinator::Resumed> Coordinator::Resume(store::Journal& journal, const Clock& clock, Nanos watched) {
  LS_ASSIGN_OR_RETURN(const std::vector<store::Event> rows, journal.Read(0));
  if (rows.empty()) return FailedPrecondition("the journal is empty: there is no run to resume");
  const Nanos last = rows.back().at;
  if (clock.Now() < last)
    return FailedPrecondition(
        "this machine was restarted since the journal was written: there are no workers to adopt");
  const bool noted = last < watched && watched <= clock.Now();
  const Nanos since = noted ? watched : last;
  Resumed resumed{std::make_unique<Coordinator>(journal, clock), {}};
  LS_ASSIGN_OR_RETURN(resumed.coordinator->state_, ReplayEvents(rows));
  LS_ASSIGN_OR_RETURN(resumed.commands, resumed.coordinator->Handle(WatcherGone{since, false, noted}));
  if (!resumed.coordinator->state().awaited.empty())
    LS_RETURN_IF_ERROR(resumed.coordinator->Handle(WaitInterrupted{since}).status());
  for (Command& command : PendingCommands(resumed.coordinator->state())) resumed.commands.push_back(std::move(command));
  return resumed;
}

}  // namespace lockstep::control
