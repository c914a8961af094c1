#include "lockstep/agent/link.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lockstep/agent/asked_to_stop.h"
#include "lockstep/agent/launch.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/child.h"
#include "lockstep/base/json_text.h"
#include "lockstep/client/join.h"

namespace lockstep::agent {
namespace {

constexpr int kGreetingMs = 30'000;  // far more than it takes: a starter does nothing that lasts
constexpr int kLookMs = 200;

Worker WorkerFrom(const Json& json) {
  Worker worker;
  worker.rank = json.value("rank", 0);
  worker.pid = json.value("pid", 0);
  worker.exited = json.value("exited", false);
  worker.code = json.value("code", 0);
  worker.signal = json.value("signal", 0);
  worker.exited_at = Nanos{json.value("at", int64_t{0})};
  return worker;
}

DroppedOutput DroppedFrom(const Json& json) {
  return {json.value("log", uint64_t{0}), json.value("console", uint64_t{0})};
}

std::string LogTail(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return Message(text.status());
  const size_t end = text->find_last_not_of('\n') + 1;
  return text->substr(end > 2000 ? end - 2000 : 0, std::min<size_t>(end, 2000));
}

}  // namespace

absl::Status LookForStarter(const std::string& run_dir) {
  LS_ASSIGN_OR_RETURN(const Fd socket, ConnectTo(run_dir + "/" + kAgentSocket));
  const absl::StatusOr<Packet> greeting = AwaitPacket(socket.get(), kGreetingMs);
  if (!greeting.ok()) return Unavailable("the starter process: {}", Message(greeting.status()));
  return absl::OkStatus();
}

StarterLink::StarterLink(const RunSpec& spec, Poller& poller, Listener listener)
    : spec_(spec), poller_(poller), listener_(std::move(listener)) {}

StarterLink::~StarterLink() {
  if (socket_.valid()) poller_.Forget(socket_.get());
}

absl::Status StarterLink::Launch() {
  const std::string log_path = spec_.run_dir + "/starter.log";
  const Fd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return Errno(errno, "{}", log_path);
  LS_ASSIGN_OR_RETURN(Pipe ready, MakePipe());
  LS_ASSIGN_OR_RETURN(const std::string self, OwnBinary());
  const Environment environment = {{kReadyVariable, std::to_string(ready.write.get())}};
  LS_RETURN_IF_ERROR(
      StartProcess({self, "starter", spec_.run_dir}, environment, "/", log.get(), log.get(), ready.write.get())
          .status());
  ready.write.Close();
  char byte = 0;
  pollfd said{ready.read.get(), POLLIN, 0};
  while (poll(&said, 1, kLookMs) <= 0)  // opening a data set may take long; who starts us has blocked these signals
    if (IsAskedToStop()) return MakeError(absl::StatusCode::kCancelled, "stopped before the starter was ready");
  if (read(ready.read.get(), &byte, 1) != 1) return Unavailable("the starter did not start: {}", LogTail(log_path));
  return Connect();
}

absl::Status StarterLink::Connect() {
  LS_ASSIGN_OR_RETURN(socket_, ConnectTo(spec_.run_dir + "/" + kAgentSocket));
  poller_.Watch(socket_.get(), [this] { Hear(); });
  return absl::OkStatus();
}

absl::Status StarterLink::CheckDoor() const {
  const absl::StatusOr<Fd> door = ConnectTo(spec_.run_dir + "/" LS_JOIN_SOCKET);
  const bool is_gone = absl::IsNotFound(door.status()) || absl::IsUnavailable(door.status());  // nobody listens
  const bool is_ours = !door.ok() || PeerOf(door->get()) == PeerOf(socket_.get());
  if (is_ours && !is_gone) return absl::OkStatus();  // other errors are no word of the door
  return FailedPrecondition(
      "the run directory {} was removed: workers started anew would train without Lockstep; start a new run, and with "
      "--checkpoint-dir it goes on from the newest checkpoint there",
      spec_.run_dir);
}

void StarterLink::Send(const Json& request, std::vector<int> fds) {
  (void)SendPacket(socket_.get(), OneLine(request), fds);
}
void StarterLink::Seat(const control::Place& place) {
  Send({{"op", "seat"},
        {"node", place.node},
        {"first_rank", place.first_rank},
        {"world_size", place.world_size},
        {"nodes", place.nodes}});
}
void StarterLink::HostStore(const control::HostStore& wish) {
  Send({{"op", "store"}, {"epoch", wish.epoch.value()}, {"restart_count", wish.restart_count}});
}
void StarterLink::Spawn(const control::Spawn& command, const std::string& code_root, const std::string& code) {
  Send({{"op", "spawn"},
        {"epoch", command.epoch.value()},
        {"restart_count", command.restart_count},
        {"store_host", command.store_host},
        {"store_port", command.store_port},
        {"store_hosted", command.store_hosted},
        {"version", command.version.number},
        {"code_root", code_root},
        {"code", code},
        {"environment", command.version.env}});
}
void StarterLink::Kill(const control::KillEpoch& command, const std::vector<int>& suspects) {
  Send({{"op", "kill"},
        {"epoch", command.epoch.value()},
        {"grace_s", command.grace.value},
        {"signal", command.signal},
        {"suspects", suspects},
        {"anew", command.anew}});
}
void StarterLink::Signal(int signal) { Send({{"op", "signal"}, {"signal", signal}}); }
void StarterLink::UnheardTold() { Send({{"op", "unheard_told"}}); }
void StarterLink::End() { Send({{"op", "end"}}); }

void StarterLink::Give(int rank, RankBuffers buffers) {
  Send({{"op", "buffers"}, {"rank", rank}, {"slot_bytes", buffers.slot_bytes}}, buffers.descriptors());
  buffers_[rank] = std::move(buffers);
  ++buffers_generation_;
}

void StarterLink::Hear() {
  std::optional<Packet> packet = ReceivePacket(socket_.get());
  if (!packet) return;
  if (packet->closed) {
    poller_.Forget(socket_.get());
    socket_.Close();
    return listener_.lost();
  }
  const std::string& text = packet->text;
  constexpr size_t kOutputHeader = 2 + sizeof(int);
  if (text.front() == 'O' && text.size() >= kOutputHeader) {
    int rank = 0;
    std::memcpy(&rank, text.data() + 2, sizeof(rank));
    return listener_.output(rank, text[1] - '0', std::string_view(text).substr(kOutputHeader));
  }
  const Json event = ParseJson(text);
  if (event.is_object()) HearEvent(event, packet->fds);
}

void StarterLink::HearEvent(const Json& event, std::vector<Fd>& fds) {
  const std::string kind = event.value("event", "");
  const auto epoch = event.value("epoch", uint64_t{0});
  if (kind == "exited") {
    listener_.exited(epoch, WorkerFrom(event));
  } else if (kind == "spawned") {
    listener_.spawned(epoch, event.value("pids", std::vector<pid_t>{}), event.value("zygote", false));
  } else if (kind == "store") {
    listener_.store(epoch, event.value("port", 0), event.value("hosted", true));
  } else if (kind == "spawn_failed") {
    listener_.spawn_failed(epoch, event.value("error", ""));
  } else if (kind == "stopped") {
    listener_.stopped(epoch);
  } else if (kind == "dropped") {
    dropped_ = DroppedFrom(event);
  } else if (kind == "start_method") {
    start_method_ = event.value("method", "");
  } else if (kind == "note") {
    listener_.note(event.value("text", ""));
  } else if (kind == "ring" && fds.size() == 1) {
    listener_.ring(event.value("rank", 0), fds[0]);
  } else if (kind == "buffers") {
    if (auto taken = TakeBuffers(fds, event.value("slot_bytes", uint64_t{0})))
      buffers_[event.value("rank", 0)] = *std::move(taken);
    ++buffers_generation_;
  } else if (kind == "hello") {
    TakeHello(event, fds);
  }
}

void StarterLink::TakeHello(const Json& event, std::vector<Fd>& fds) {
  if (fds.empty()) return;
  if (auto board = BoardMap::Map(std::move(fds[0])); board.ok()) board_.emplace(*std::move(board));
  dropped_ = DroppedFrom(event.value("dropped", Json::object()));
  start_method_ = event.value("start_method", "");
  Hello hello{.epoch = event.value("epoch", uint64_t{0}),
              .restart_count = event.value("restart_count", 0),
              .stopped = event.value("stopped", false),
              .zygote = event.value("zygote", false),
              .unheard_since = Nanos{event.value("unheard_since", int64_t{0})},
              .workers = {}};
  for (const Json& worker : event.value("workers", Json::array())) hello.workers.push_back(WorkerFrom(worker));
  listener_.hello(hello);
}

}  // namespace lockstep::agent
