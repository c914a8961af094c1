#include "lockstep/probe/neighbours.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/probe/pattern.h"

namespace lockstep::probe {
namespace {

constexpr uint64_t kTotal = 64 << 20, kMostBlock = 8 << 20, kLeastBlock = 64 << 10;
constexpr size_t kLeastSteps = 4;       // of few nodes, more than one round
constexpr uint64_t kMostTrouble = 500;  // bytes of its text
constexpr Seconds kLeastTransfer{2};
constexpr Seconds kGrace{1};  // for a node that is about to tell its trouble
constexpr size_t kMostCallers = 64;

// What all nodes agree on without a word.
struct Plan {
  explicit Plan(const NeighboursOptions& options)
      : nodes(options.nodes.size()),
        self(options.self),
        block_bytes(std::clamp(kTotal / (nodes - 1) / kLeastBlock * kLeastBlock, kLeastBlock, kMostBlock)),
        steps((nodes - 1) * std::max<size_t>(1, kLeastSteps / (nodes - 1))) {}

  size_t Left() const { return (self + nodes - 1) % nodes; }
  size_t Right() const { return (self + 1) % nodes; }
  // Whose block `node` sends in a step.
  size_t OwnerSentBy(size_t node, size_t step) const { return (node + nodes - step % (nodes - 1)) % nodes; }
  uint64_t Seed(size_t owner, size_t step) const { return 0x6e65696700000000 + owner * 0x100000 + step / (nodes - 1); }

  size_t nodes, self;
  uint64_t block_bytes;
  size_t steps;
};

absl::Status SendAll(int fd, std::span<const char> bytes, const Budget& budget) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      return Errno(errno, "sending");
    } else if (!WaitFor(fd, POLLOUT, budget)) {
      return Unavailable("it takes nothing more in time");
    }
  }
  return absl::OkStatus();
}

// `got`: how much of it came, also of what failed.
absl::Status ReceiveAll(int fd, std::span<char> bytes, const Budget& budget, size_t& got) {
  for (got = 0; got < bytes.size();) {
    const ssize_t more = recv(fd, bytes.data() + got, bytes.size() - got, 0);
    if (more > 0) {
      got += static_cast<size_t>(more);
    } else if (more == 0) {
      return Unavailable("it closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return Errno(errno, "receiving");
    } else if (!WaitFor(fd, POLLIN, budget)) {
      return Unavailable("nothing more came in time");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Frame> ReceiveFrame(int fd, const Budget& budget) {
  std::array<char, kFrameBytes> bytes{};
  size_t got = 0;
  const absl::Status status = ReceiveAll(fd, bytes, budget, got);
  if (got > 0 && got < kFrameBytes)
    return DataLoss("{}; of a frame {} of {} bytes came", Message(status), got, kFrameBytes);
  LS_RETURN_IF_ERROR(status);
  return DecodeFrame(bytes);
}

std::span<const char> AsBytes(std::span<const uint64_t> words) {
  return {reinterpret_cast<const char*>(words.data()), words.size_bytes()};
}

// Has connected, and not said yet who it is.
struct Caller {
  Fd fd;
  std::array<char, kFrameBytes> hello{};
  size_t got = 0;  // bytes of it
};

class Ring {
 public:
  Ring(const Budget& budget, const NeighboursOptions& options)
      : options_(options),
        plan_(options),
        wait_(budget.Of(options.wait)),
        all_(budget.Of(options.wait + Seconds{std::max(kLeastTransfer.value, budget.Left().value)})) {}

  std::vector<Measurement> Run() {
    absl::StatusOr<Fd> listener =
        options_.listener < 0 ? Listen(options_.nodes[plan_.self], wait_) : TakeOver(options_.listener);
    if (!listener.ok()) {
      return {{.name = "neighbours.receive", .unit = "GB/s", .ok = false, .text = Message(listener.status())}};
    }
    {
      const std::jthread receiver([&] { Receive(listener->get()); });
      Send();
    }
    return {Sent(), Received(), Bits()};
  }

 private:
  std::string Name(size_t node) const { return EndpointText(options_.nodes[node]); }
  Frame MakeFrame(FrameKind kind, size_t owner, uint64_t bytes) const {
    return {kind, static_cast<uint32_t>(plan_.self), static_cast<uint32_t>(owner), static_cast<uint32_t>(plan_.nodes),
            bytes};
  }

  // ---- to the next node, in the caller's thread ----

  void Send() {
    const Nanos begin = wait_.Now();
    absl::StatusOr<Fd> right = ConnectTo(options_.nodes[plan_.Right()], wait_);
    if (!right.ok()) {
      sent_ = right.status();
      return;
    }
    connected_after_ = ToSeconds(wait_.Now() - begin);
    sent_ = SendAll(right->get(), EncodeFrame(MakeFrame(FrameKind::kHello, 0, 0)), wait_);
    std::vector<uint64_t> block(plan_.block_bytes / sizeof(uint64_t));
    for (size_t step = 0; sent_.ok() && step < plan_.steps; ++step) {
      if (!AwaitArrival(step)) {
        SendTrouble(right->get());
        return;
      }
      sent_ = SendBlock(right->get(), step, block);
    }
    if (sent_.ok()) shutdown(right->get(), SHUT_WR);
  }

  absl::Status SendBlock(int fd, size_t step, std::span<uint64_t> block) {
    const size_t owner = plan_.OwnerSentBy(plan_.self, step);
    FillPattern(plan_.Seed(owner, step), 0, block);
    if (options_.tamper) options_.tamper(owner, block);
    LS_RETURN_IF_ERROR(SendAll(fd, EncodeFrame(MakeFrame(FrameKind::kBlock, owner, block.size_bytes())), all_));
    LS_RETURN_IF_ERROR(SendAll(fd, AsBytes(block), all_));
    ++blocks_sent_;
    return absl::OkStatus();
  }

  // Until the block that is passed on in this step has come; one's own is there anyway. False: it won't come.
  bool AwaitArrival(size_t step) {
    std::unique_lock lock(mutex_);
    const size_t needed = step % (plan_.nodes - 1) == 0 ? 0 : step;
    changed_.wait(lock, [&] { return arrived_ >= needed || receiving_over_; });
    return arrived_ >= needed;
  }

  void SendTrouble(int fd) {
    std::string why = trouble_.substr(0, kMostTrouble);
    const Budget soon = all_.Of(kGrace);
    if (SendAll(fd, EncodeFrame(MakeFrame(FrameKind::kTrouble, plan_.self, why.size())), soon).ok()) {
      sent_ = SendAll(fd, why, soon);
    }
  }

  // ---- from the node before, in a thread of its own ----

  void Receive(int listener) {
    absl::StatusOr<Fd> left = AwaitLeft(listener);
    received_ = left.status();
    for (size_t step = 0; received_.ok() && told_.empty() && step < plan_.steps; ++step) {
      received_ = ReceiveBlock(left->get(), step);
      const std::lock_guard lock(mutex_);
      if (received_.ok() && told_.empty()) ++arrived_;
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    trouble_ = !told_.empty() ? told_
                              : fmt::format("{} from {}: {}", Name(plan_.self), Name(plan_.Left()), Message(received_));
    receiving_over_ = true;
    changed_.notify_all();
  }

  // Somebody else may knock, and others may have before we began; the right one may come later.
  absl::StatusOr<Fd> AwaitLeft(int listener) {
    std::string stranger;
    std::deque<Caller> callers;  // the oldest first
    std::vector<pollfd> awaited;
    do {
      if (Fd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); fd.valid()) {
        if (callers.size() >= kMostCallers) callers.pop_front();
        callers.push_back({std::move(fd)});
      }
      awaited = {{listener, POLLIN, 0}};
      for (Caller& caller : callers) {
        const std::optional<absl::Status> said = Hear(caller);
        if (said && said->ok()) return std::move(caller.fd);
        if (said) stranger = "; somebody came, but " + Message(*said);
        if (said) caller.fd.Close();
        if (!said) awaited.push_back({caller.fd.get(), POLLIN, 0});
      }
      std::erase_if(callers, [](const Caller& caller) { return !caller.fd.valid(); });
    } while (WaitFor(awaited, wait_));
    if (stranger.empty() && !callers.empty()) stranger = "; somebody came, but did not say all of who it is";
    return Unavailable("it did not come within {:.1f} s{}", options_.wait.value, stranger);
  }

  // Whether it is the node before. None: it has not said all yet.
  std::optional<absl::Status> Hear(Caller& caller) const {
    const std::span<char> rest = std::span(caller.hello).subspan(caller.got);
    const ssize_t more = recv(caller.fd.get(), rest.data(), rest.size(), 0);
    if (more == 0) return Unavailable("it closed the connection; {} of {} bytes came", caller.got, kFrameBytes);
    if (more < 0 && errno != EAGAIN && errno != EINTR) return Errno(errno, "receiving");
    caller.got += static_cast<size_t>(std::max<ssize_t>(more, 0));
    if (caller.got < kFrameBytes) return std::nullopt;
    const absl::StatusOr<Frame> hello = DecodeFrame(caller.hello);
    if (!hello.ok()) return hello.status();
    if (hello->kind == FrameKind::kHello && hello->sender == plan_.Left() && hello->nodes == plan_.nodes)
      return absl::OkStatus();
    return InvalidArgument("node {} of {} came, expected node {} of {}: do all nodes have the same list?",
                           hello->sender, hello->nodes, plan_.Left(), plan_.nodes);
  }

  absl::Status ReceiveBlock(int fd, size_t step) {
    const Budget patient = all_.Of(all_.Left() + kGrace);
    LS_ASSIGN_OR_RETURN(const Frame frame, ReceiveFrame(fd, patient));
    if (frame.kind == FrameKind::kTrouble) return ReceiveTrouble(fd, frame);
    const size_t owner = plan_.OwnerSentBy(plan_.Left(), step);
    if (frame.kind != FrameKind::kBlock || frame.owner != owner || frame.bytes != plan_.block_bytes)
      return DataLoss("expected the block of node {} with {} bytes, found that of node {} with {}", owner,
                      plan_.block_bytes, frame.owner, frame.bytes);
    words_.resize(plan_.block_bytes / sizeof(uint64_t));
    const Nanos begin = all_.Now();
    size_t got = 0;
    const absl::Status status =
        ReceiveAll(fd, {reinterpret_cast<char*>(words_.data()), words_.size() * sizeof(uint64_t)}, all_, got);
    seconds_ += ToSeconds(all_.Now() - begin).value;
    bytes_ += got;
    if (!status.ok()) return DataLoss("{}; {} of {} bytes of a block came", Message(status), got, plan_.block_bytes);
    difference_.Add(CompareWithPattern(plan_.Seed(owner, step), 0, words_));
    return absl::OkStatus();
  }

  absl::Status ReceiveTrouble(int fd, const Frame& frame) {
    std::string why(std::min(frame.bytes, kMostTrouble), ' ');
    size_t got = 0;
    LS_RETURN_IF_ERROR(ReceiveAll(fd, why, all_.Of(kGrace), got));
    told_ = why.empty() ? "the node before gave up" : why;
    return absl::OkStatus();
  }

  // ---- when both are done ----

  Measurement Sent() const {
    Measurement sent{.name = "neighbours.send", .value = sent_.ok() ? 0.0 : 1.0, .unit = "errors"};
    sent.ok = sent_.ok();
    sent.text = sent_.ok() ? fmt::format("{} blocks of {} KiB; connected after {:.1f} ms", blocks_sent_,
                                         plan_.block_bytes >> 10, connected_after_.value * 1e3)
                           : Message(sent_);
    sent.with = Name(plan_.Right());
    return sent;
  }

  Measurement Received() const {
    Measurement received{.name = "neighbours.receive", .unit = "GB/s", .ok = received_.ok()};
    if (seconds_ > 0) received.value = static_cast<double>(bytes_) / seconds_ * 1e-9;
    received.text = fmt::format("{} of {} blocks of {} KiB", arrived_, plan_.steps, plan_.block_bytes >> 10);
    if (!received_.ok()) received.text = Message(received_) + "; " + received.text;
    if (!told_.empty()) received.text = "not finished, because of " + told_ + "; " + received.text;
    received.with = Name(plan_.Left());
    return received;
  }

  Measurement Bits() const {
    Measurement bits{.name = "neighbours.bits", .value = static_cast<double>(difference_.words), .unit = "errors"};
    bits.ok = difference_.words == 0;
    bits.text = bits.ok ? fmt::format("{} blocks compared", arrived_)
                        : fmt::format("{} words arrived wrong; first, word {}: {:016x}, expected {:016x}",
                                      difference_.words, difference_.position, difference_.found, difference_.expected);
    bits.with = Name(plan_.Left());
    return bits;
  }

  const NeighboursOptions& options_;
  const Plan plan_;
  const Budget wait_;  // until both neighbours are there
  const Budget all_;
  // Of the sender.
  absl::Status sent_;
  Seconds connected_after_;
  size_t blocks_sent_ = 0;
  // Of the receiver; the sender reads trouble_ when receiving_over_.
  absl::Status received_;
  std::string told_, trouble_;
  std::vector<uint64_t> words_;
  Difference difference_;
  uint64_t bytes_ = 0;
  double seconds_ = 0;
  std::mutex mutex_;  // guards what follows, until the receiver has ended
  std::condition_variable changed_;
  size_t arrived_ = 0;
  bool receiving_over_ = false;
};

}  // namespace

std::vector<Measurement> MeasureNeighbours(const Budget& budget, const NeighboursOptions& options) {
  LS_CHECK(options.nodes.size() >= 2 && options.self < options.nodes.size());
  return Ring(budget, options).Run();
}

}  // namespace lockstep::probe
