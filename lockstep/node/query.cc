#include "lockstep/node/query.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/host.h"
#include "lockstep/base/json_text.h"
#include "lockstep/control/report.h"
#include "lockstep/control/story.h"
#include "lockstep/incident/fields.h"
#include "lockstep/node/past.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/store/postgres_journal.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::node {
namespace {

constexpr int kAnswerTimeoutMs = 2000;

bool IsUnwatched(const absl::Status& asked) { return absl::IsUnavailable(asked) || absl::IsNotFound(asked); }

// Nobody answers in time, or at all: the journal is asked instead. Not where somebody says that he can't say it, or
// where we may not ask.
bool IsUnheard(const absl::Status& asked) {
  return IsUnwatched(asked) || absl::IsDeadlineExceeded(asked) || absl::IsResourceExhausted(asked);
}

// Somebody was there, and hung up. He may have come to his end; or he is there and let us in no further.
absl::Status HungUp(const std::string& run_dir) {
  if (!store::WriterLock::IsHeld(run_dir + "/" + agent::kWatcherLock))
    return Unavailable("{}: the watching process hung up", run_dir);
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      fmt::format("{}: its watching process hung up, and is still there: it is about to end, or has as many "
                  "files open as it may (ulimit -n); ask again",
                  run_dir));
}

absl::StatusOr<agent::Packet> Exchange(const std::string& run_dir, const Fd& socket, const Json& request) {
  const absl::Status sent = agent::SendPacket(socket.get(), OneLine(request));
  if (absl::IsUnavailable(sent)) return HungUp(run_dir);
  LS_RETURN_IF_ERROR(sent);
  absl::StatusOr<agent::Packet> packet = agent::AwaitPacket(socket.get(), kAnswerTimeoutMs);
  if (absl::IsDeadlineExceeded(packet.status()))
    return MakeError(
        absl::StatusCode::kDeadlineExceeded,
        fmt::format("{}: {}: its watching process is stopped, or busy", run_dir, Message(packet.status())));
  if (!packet.ok()) return HungUp(run_dir);
  return packet;
}

// Who leads the run of a coordinator that is gone. Empty: nobody, as far as is known.
std::string LeaderNow(const std::string& run_dir) {
  const absl::StatusOr<agent::RunSpec> spec = agent::ReadRunSpec(run_dir);
  if (!spec.ok() || spec->journal.empty()) return "";
  const std::string leader = store::LeaderOf(spec->journal, spec->job).value_or("");
  const bool is_it = leader.starts_with(LeaderName(spec->endpoint) + ",");  // it went just now
  return is_it ? "" : leader;
}

std::string WhatToDo(const std::string& run_dir, const absl::Status& asked) {
  const absl::StatusOr<agent::RunSpec> spec = agent::ReadRunSpec(run_dir);
  if (spec.ok())
    if (const absl::Status in_place = CheckInPlace(run_dir, *spec); !in_place.ok()) return Message(in_place);
  if (const std::string leader = LeaderNow(run_dir); !leader.empty())
    return fmt::format("this coordinator is gone, and another one leads: {}; ask there", leader);
  return fmt::format("nobody watches this run; {} ({})", HowToGoOn(run_dir), Message(asked));
}

}  // namespace

std::string LeaderName(const std::string& endpoint) { return fmt::format("{} at {}", HostName(), endpoint); }

absl::StatusOr<Json> Ask(const std::string& run_dir, const Json& request) {
  LS_ASSIGN_OR_RETURN(const Fd socket, agent::ConnectTo(run_dir + "/" + agent::kControlSocket));
  LS_ASSIGN_OR_RETURN(const agent::Packet packet, Exchange(run_dir, socket, request));
  LS_ASSIGN_OR_RETURN(const std::string text, TextOf(packet));
  Json answer = ParseJson(text);
  if (answer.is_discarded()) return DataLoss("{}: an answer of {} bytes that is no JSON", run_dir, text.size());
  if (answer.is_object() && answer.contains("error"))
    return FailedPrecondition("{}", answer["error"].get<std::string>());
  return answer;
}

absl::Status CheckPidNamespace(const std::string& run_dir) {
  const absl::StatusOr<Json> answer = Ask(run_dir, {{"op", "who"}});
  if (absl::IsFailedPrecondition(answer.status()) || (answer.ok() && !answer->contains("pid")))
    return FailedPrecondition("{}: its watching process is of an older version: drill it with that one's lockstep",
                              run_dir);
  LS_RETURN_IF_ERROR(answer.status());
  LS_ASSIGN_OR_RETURN(const Fd socket, agent::ConnectTo(run_dir + "/" + agent::kControlSocket));
  const pid_t watcher = PeerOf(socket.get());
  if (watcher != 0 && watcher == answer->value("pid", 0)) return absl::OkStatus();
  return FailedPrecondition(
      "{}: the run is in another PID namespace, so its pids are those of others here: drill it there", run_dir);
}

std::string AskElsewhere(const std::string& coordinator) {
  return fmt::format("this node does not lead the job: ask where its coordinator runs ({})", coordinator);
}

absl::StatusOr<Json> AskWatched(const std::string& run_dir, const Json& request) {
  absl::StatusOr<Json> answer = Ask(run_dir, request);
  if (absl::IsDeadlineExceeded(answer.status()))
    return Unavailable("{}; it is asked all the same, and does it when it comes to it", Message(answer.status()));
  if (!IsUnheard(answer.status())) return answer;
  const auto replayed = Replay(run_dir);
  if (replayed.ok() && replayed->state.mode == control::Mode::kFinished)
    return FailedPrecondition("{}: this run has ended: {}", run_dir, replayed->state.verdict);
  if (!IsUnwatched(answer.status())) return answer;
  return FailedPrecondition("{}: {}", run_dir, WhatToDo(run_dir, answer.status()));
}

absl::StatusOr<Json> QueryStatus(const std::string& run_dir) {
  auto answer = Ask(run_dir, {{"op", "status"}});
  if (!IsUnheard(answer.status())) return answer;
  const absl::StatusOr<history::Replayed> journal = Replay(run_dir);
  if (!journal.ok()) return Unavailable("{}; {}", Message(answer.status()), Message(journal.status()));
  const history::Replayed& replayed = *journal;
  Json status = control::StatusReport(replayed.state, control::Observed{}, replayed.last);
  for (const char* seen : {"loss", "loss_is_finite", "start_method", "checkpoint", "records", "output"})
    control::Forget(status[seen]);
  if (replayed.state.mode == control::Mode::kFinished) return status;
  for (const char* seen : {"step", "furthest_step"}) control::Forget(status[seen]);
  status["trouble"] = IsUnwatched(answer.status()) ? WhatToDo(run_dir, answer.status()) : Message(answer.status());
  if (const std::string leader = LeaderNow(run_dir); !leader.empty()) {
    status["leader"] = leader;  // the state is what its journal has
  } else {
    status["state"] = "unwatched";
  }
  return status;
}

absl::StatusOr<Json> QueryIncidents(const std::string& run_dir) {
  auto answer = Ask(run_dir, {{"op", "incidents"}});
  if (!IsUnheard(answer.status())) return answer;
  LS_ASSIGN_OR_RETURN(const history::Replayed replayed, Replay(run_dir));
  return control::IncidentsReport(replayed.state, replayed.last);
}

// Who watches knows also what no disk would take.
absl::StatusOr<Json> QueryWhy(const std::string& run_dir, int64_t incident) {
  auto answer = Ask(run_dir, {{"op", "why"}, {"incident", incident}});
  if (answer.ok()) return answer;
  const absl::StatusOr<history::Replayed> replayed = Replay(run_dir);
  if (replayed.ok()) return control::Story(replayed->state, incident, replayed->last);
  return IsUnheard(answer.status()) ? replayed.status() : answer.status();
}

Json AnswerWhy(const control::State& state, const Json& request, Nanos now) {
  incident::Fields fields(request, "request");
  const absl::StatusOr<Json> story = control::Story(state, fields.Int("incident"), now);
  return story.ok() ? *story : Json{{"error", Message(story.status())}};
}

absl::Status AskStop(const std::string& run_dir) { return AskWatched(run_dir, {{"op", "stop"}}).status(); }

ControlSocket::~ControlSocket() {
  if (doorway_.fd() >= 0) poller_.Forget(doorway_.fd());
  for (const auto& [peer, fd] : peers_) poller_.Forget(fd.get());
}

absl::Status ControlSocket::Listen(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(doorway_, Doorway::Open(run_dir + "/" + agent::kControlSocket));
  poller_.Watch(doorway_.fd(), [this] { Accept(); });
  return absl::OkStatus();
}

void ControlSocket::Accept() {
  Fd fd = doorway_.Accept();
  if (!fd.valid()) return;
  const int bytes = 4 << 20;
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  const uint64_t peer = ++accepted_;
  poller_.Watch(fd.get(), [this, peer] { Serve(peer); });
  peers_[peer] = std::move(fd);
}

void ControlSocket::Serve(uint64_t peer) {
  const Fd& fd = peers_.at(peer);
  const std::optional<agent::Packet> packet = agent::ReceivePacket(fd.get());
  if (!packet) return;
  if (packet->closed) {
    poller_.Forget(fd.get());
    peers_.erase(peer);
    return;
  }
  const Json request = ParseJson(packet->text);
  if (request.is_object() && request.value("op", Json()) == "who") return Send(peer, {{"pid", getpid()}});
  answer_(request.is_object() ? request : Json::object(), [this, peer](const Json& answer) { Send(peer, answer); });
}

// Symbols in stacks may hold any bytes; JSON may not.
void ControlSocket::Send(uint64_t peer, const Json& answer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  const int socket = found->second.get();
  const absl::Status sent = SendText(socket, OneLine(answer));
  if (!sent.ok()) (void)agent::SendPacket(socket, OneLine(Json({{"error", Message(sent)}})));
}

}  // namespace lockstep::node
