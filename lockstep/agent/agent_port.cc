#include "lockstep/agent/agent_port.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/base/json_text.h"

namespace lockstep::agent {
namespace {

constexpr size_t kMaxQueuedEvents = 10000;

std::string OutputPacket(int rank, int stream, std::string_view data) {
  std::string packet = "O" + std::to_string(stream);
  packet.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  packet.append(data);
  return packet;
}

}  // namespace

AgentPort::AgentPort(Poller& poller, const Clock& clock, Calls calls)
    : poller_(poller), clock_(clock), calls_(std::move(calls)), seen_(clock.Now()) {}

absl::Status AgentPort::Listen(const std::string& path) {
  LS_ASSIGN_OR_RETURN(doorway_, Doorway::Open(path));
  poller_.Watch(doorway_.fd(), [this] { Accept(); });
  return absl::OkStatus();
}

void AgentPort::Accept() {
  Fd fd = doorway_.Accept();
  if (!fd.valid()) return;
  if (fd_.valid()) HangUp();
  fd_ = std::move(fd);
  poller_.Watch(fd_.get(), [this] {
    Hear();
    Flush();
  });
  calls_.connected();
}

// What waits goes to nobody else: the next agent is told the whole state, and the logs have the output.
void AgentPort::HangUp() {
  if (!output_.empty()) NoteUnheard();
  poller_.Forget(fd_.get());
  fd_.Close();
  events_.clear();
  output_.clear();
  output_bytes_ = 0;
  left_out_ = {};
  seen_ = clock_.Now();
}

void AgentPort::NoteUnheard() {
  if (unheard_since_.value == 0) unheard_since_ = clock_.WallNow();
}

void AgentPort::Hear() {
  std::optional<Packet> packet = ReceivePacket(fd_.get());
  if (!packet) return;
  if (packet->closed) {
    HangUp();
    calls_.left();
    return calls_.waiting();
  }
  const Json request = ParseJson(packet->text);
  if (request.is_object()) calls_.asked(request, packet->fds);
}

Nanos AgentPort::Missed() const { return connected() ? Nanos{} : clock_.Now() - seen_; }

void AgentPort::Tell(const Json& event, std::vector<int> fds) {
  if (!fd_.valid()) return;
  const std::string text = OneLine(event);
  if (events_.empty() && SendPacket(fd_.get(), text, fds).ok()) return;
  if (events_.size() < kMaxQueuedEvents) {
    Waiting& waiting = events_.emplace_back(Waiting{text, {}});
    for (const int given : fds)
      if (Fd own(fcntl(given, F_DUPFD_CLOEXEC, 0)); own.valid()) waiting.fds.push_back(std::move(own));
  }
  Flush();
  calls_.waiting();
}

void AgentPort::TellAfterOutput(const Json& event) {
  for (const int stream : {1, 2}) SayLeftOut(0, stream);
  if (output_.empty()) return Tell(event);
  Queue(OneLine(event));
  calls_.waiting();
}

void AgentPort::TellOutput(int rank, int stream, std::string_view data) {
  if (!fd_.valid()) return NoteUnheard();
  if (output_bytes_ + data.size() > kMostOutputKept) Flush();  // whoever prints much keeps us from waiting for room
  if (output_bytes_ + data.size() > kMostOutputKept) {
    left_out_.at(static_cast<size_t>(stream)) += data.size();
    dropped_output_ += data.size();
    return;
  }
  SayLeftOut(rank, stream);
  Queue(OutputPacket(rank, stream, data));
  Flush();
}

// In the place of what was: before what comes next.
void AgentPort::SayLeftOut(int rank, int stream) {
  if (const uint64_t bytes = std::exchange(left_out_.at(static_cast<size_t>(stream)), 0); bytes > 0)
    Queue(OutputPacket(rank, stream, LeftOut(bytes)));
}

void AgentPort::Queue(std::string packet) {
  output_bytes_ += packet.size() + sizeof(Waiting);
  output_.emplace_back(Waiting{std::move(packet), {}});
}

void AgentPort::Flush() {
  while (fd_.valid() && queued()) {
    std::deque<Waiting>& queue = events_.empty() ? output_ : events_;
    const Waiting& next = queue.front();
    std::vector<int> fds;
    for (const Fd& one : next.fds) fds.push_back(one.get());
    const absl::Status sent = SendPacket(fd_.get(), next.text, fds);
    // What is too large would stop the rest for good. Descriptors may be refused though there is room: Tick tries
    // again.
    if (!sent.ok() && !absl::IsInvalidArgument(sent)) return poller_.AwaitRoom(fd_.get(), next.fds.empty());
    if (&queue == &output_) output_bytes_ -= next.text.size() + sizeof(Waiting);
    queue.pop_front();
  }
  if (fd_.valid()) poller_.AwaitRoom(fd_.get(), false);
}

}  // namespace lockstep::agent
