#include "lockstep/rpc/client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "link.grpc.pb.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/rpc/encode.h"
#include "lockstep/rpc/outbox.h"

namespace lockstep::rpc {
namespace {

constexpr Seconds kRetry{0.25}, kStillHere{1};
constexpr Seconds kAnswer{1};      // for one of several addresses to say anything: its machine may be gone
constexpr Seconds kQuiet{1.5};     // a leader that says nothing for so long may be replaced soon
constexpr Seconds kOffsetAge{30};  // clocks drift apart, by up to a second or two a day

// How many streams gRPC is still busy with: a process must not end under its threads.
class Busy {
 public:
  void Enter() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void Leave() {
    const std::lock_guard lock(mutex_);
    --count_;
    changed_.notify_all();
  }
  void AwaitNone() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(2), [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// One attempt, and the stream that came of it. Kept alive by `self_` until gRPC is done with it.
class Stream final : public grpc::ClientBidiReactor<FromAgent, FromCoordinator> {
 public:
  using Heard = std::function<void(FromCoordinator)>;
  using Done = std::function<void(grpc::Status)>;

  Stream(std::shared_ptr<Busy> busy, Heard heard, Done done)
      : busy_(std::move(busy)),
        heard_(std::move(heard)),
        done_(std::move(done)),
        outbox_([this](const FromAgent* message) { StartWrite(message); }) {}

  void Begin(Coordination::Stub& stub, FromAgent join, std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    busy_->Enter();
    stub.async()->Attend(&context_, this);
    AddHold();  // writes come from outside
    StartRead(&incoming_);
    outbox_.Add(std::move(join));
    StartCall();
  }
  // In the poller's thread.
  bool Write(FromAgent message) { return outbox_.Add(std::move(message)); }
  void End() {
    context_.TryCancel();
    LetGo();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return LetGo();  // the other side has ended it: OnDone says why
    heard_(std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnReadInitialMetadataDone(bool) override {}
  void OnWriteDone(bool ok) override { ok ? (void)outbox_.Done() : outbox_.Close(); }
  void OnDone(const grpc::Status& status) override {
    done_(status);
    const std::shared_ptr<Busy> busy = busy_;
    self_.reset();
    busy->Leave();
  }

 private:
  // No write begins any more, so gRPC may be done with us.
  void LetGo() {
    outbox_.Close();
    if (!let_go_.exchange(true)) RemoveHold();
  }

  const std::shared_ptr<Busy> busy_;
  const Heard heard_;
  const Done done_;
  grpc::ClientContext context_;
  FromCoordinator incoming_;
  Outbox<FromAgent> outbox_;
  std::atomic<bool> let_go_ = false;
  std::shared_ptr<Stream> self_;
};

grpc::ChannelArguments Patience() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own for each client
  return arguments;
}

}  // namespace

class Client::Link {
 public:
  Link(const std::vector<std::string>& addresses, control::Join join, Poller& poller, const Clock& clock,
       Listener listener)
      : clock_(clock),
        listener_(std::move(listener)),
        join_(std::move(join)),
        mailbox_(std::make_shared<Mailbox>(poller)),
        addresses_(addresses),
        lost_since_(clock.Now()) {
    for (const std::string& address : addresses_)
      stubs_.push_back(
          Coordination::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), Patience())));
  }

  ~Link() {
    mailbox_->Close();
    if (stream_) stream_->End();
    stream_.reset();
    EndLook();
    busy_->AwaitNone();
  }

  void Say(control::Said said) {
    if (!welcomed_ || !stream_) return;
    Shift(said, offset_);
    if (!stream_->Write(Encode(said))) Lose("the coordinator takes no messages");
  }

  void Tick() {
    const Nanos now = clock_.Now();
    // Were we stopped ourselves, what was sent meanwhile is read first.
    const bool awake = now - ticked_ < ToNanos(Seconds{1});
    ticked_ = now;
    if (!awake) heard_ = std::max(heard_, now - ToNanos(Seconds{1}));
    if (stream_ && now - heard_ >= ToNanos(kSilence)) Lose(fmt::format("nothing heard for {} s", kSilence.value));
    if (stream_ && !answered_ && awake && stubs_.size() > 1 && now - tried_ >= ToNanos(kAnswer))
      Lose(fmt::format("no answer within {} s", kAnswer.value));
    if (!stream_ && !refused_ && now - tried_ >= ToNanos(kRetry)) Try();
    if (stream_ && !welcomed_ && now - said_ >= ToNanos(kStillHere)) {
      said_ = now;
      stream_->Write(Encode(join_));
    }
    LookAround(now);
  }

  void BelongTo(const std::string& run) { join_.run = run; }
  bool connected() const { return welcomed_; }
  const std::string& address() const { return addresses_[at_]; }
  Nanos lost_since() const { return welcomed_ ? Nanos{} : lost_since_; }
  const std::string& problem() const { return problem_; }

 private:
  std::shared_ptr<Stream> Open(size_t address, uint64_t attempt) {
    // The mailbox may outlive us, for gRPC's last words; what is posted then is dropped.
    const std::shared_ptr<Mailbox> mailbox = mailbox_;
    auto stream = std::make_shared<Stream>(
        busy_,
        [this, attempt, mailbox](FromCoordinator message) {
          mailbox->Post([this, attempt, message = std::move(message)] { Hear(attempt, message); });
        },
        [this, attempt, mailbox](const grpc::Status& status) {
          mailbox->Post([this, attempt, why = status.error_message()] {
            if (attempt == attempt_) Lose(why.empty() ? "the coordinator ended the stream" : why);
            if (attempt == look_) EndLook();
          });
        });
    stream->Begin(*stubs_[address], Encode(join_), stream);
    return stream;
  }

  void Try() {
    tried_ = heard_ = said_ = clock_.Now();
    offset_known_ = answered_ = may_be_replaced_ = false;
    at_ = next_;
    attempt_ = ++last_attempt_;
    stream_ = Open(at_, attempt_);
  }

  void Lose(const std::string& why) {
    problem_ = why;
    attempt_ = 0;  // what still comes of that stream is not ours any more
    if (stream_) stream_->End();
    stream_.reset();
    next_ = (at_ + 1) % stubs_.size();
    if (!std::exchange(welcomed_, false)) return;
    lost_since_ = clock_.Now();
    if (!refused_) listener_.lost(why);
  }

  void Hear(uint64_t attempt, const FromCoordinator& message) {
    if (attempt == look_) return HearLook(message);
    if (attempt != attempt_) return;
    heard_ = clock_.Now();
    answered_ = true;
    switch (message.told_case()) {
      case FromCoordinator::kHeartbeat:
        problem_.clear();
        may_be_replaced_ = message.heartbeat().may_be_replaced();
        return Follow(Nanos{message.heartbeat().now_ns()});
      case FromCoordinator::kWelcome:
        return Attend(message.welcome());
      case FromCoordinator::kRefusal: {
        refused_ = !message.refusal().not_leading();
        const std::string why = message.refusal().why();
        Lose(why);
        if (refused_) listener_.refused(why);
        if (message.refusal().leads_another()) listener_.leads_another(why);
        return;
      }
      default:
        break;
    }
    const absl::StatusOr<control::Told> told = DecodeTold(message);
    if (told.ok()) return listener_.told(*told);
    Log(LogLevel::kWarning, "the coordinator said what can't be read: {}", Message(told.status()));
  }

  void Attend(const Welcome& welcome) {
    if (welcome.term() < join_.term) return Lose("another coordinator has led since");
    welcomed_ = true;
    join_.term = welcome.term();
    join_.run = welcome.run();
    listener_.welcomed(DecodePlace(welcome), welcome.run());
  }

  // ---- does somebody else lead by now?

  void LookAround(Nanos now) {
    if (look_ != 0 && (!welcomed_ || now - looked_ >= ToNanos(kAnswer))) EndLook();
    const bool in_doubt = may_be_replaced_ || now - heard_ >= ToNanos(kQuiet);
    if (!in_doubt || !welcomed_ || look_ != 0 || stubs_.size() < 2 || now - looked_ < ToNanos(kRetry)) return;
    looked_ = now;
    look_at_ = (look_at_ + 1) % stubs_.size();
    if (look_at_ == at_) look_at_ = (look_at_ + 1) % stubs_.size();
    look_ = ++last_attempt_;
    look_stream_ = Open(look_at_, look_);
  }

  void EndLook() {
    look_ = 0;
    if (look_stream_) look_stream_->End();
    look_stream_.reset();
  }

  void HearLook(const FromCoordinator& message) {
    if (message.told_case() == FromCoordinator::kHeartbeat) {  // it comes first
      look_said_ = Nanos{message.heartbeat().now_ns()};
      look_heard_ = clock_.Now();
      return;
    }
    if (message.told_case() != FromCoordinator::kWelcome || message.welcome().term() <= join_.term) return EndLook();
    if (stream_) stream_->End();  // the old leader may have gone just now
    stream_ = std::move(look_stream_);
    attempt_ = std::exchange(look_, 0);
    at_ = look_at_;
    may_be_replaced_ = offset_known_ = false;
    heard_ = look_heard_;
    Follow(look_said_);
    Attend(message.welcome());
  }

  // What their clock says when ours says 0. A message is never early, so the largest difference is the best; it errs by
  // the shortest way of a message.
  void Follow(Nanos theirs) {
    const Nanos difference = theirs - heard_;
    if (!offset_known_) best_before_ = best_ = difference;
    offset_known_ = true;
    if (heard_ - best_since_ >= ToNanos(kOffsetAge)) {
      best_since_ = heard_;
      best_before_ = std::exchange(best_, difference);
    }
    best_ = std::max(best_, difference);
    offset_ = std::max(best_, best_before_);
  }

  const Clock& clock_;
  const Listener listener_;
  control::Join join_;
  std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<Busy> busy_ = std::make_shared<Busy>();
  const std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<Coordination::Stub>> stubs_;  // of each address
  std::shared_ptr<Stream> stream_, look_stream_;
  uint64_t last_attempt_ = 0, attempt_ = 0, look_ = 0;  // of stream_ and look_stream_; 0: none
  size_t at_ = 0, next_ = 0, look_at_ = 0;              // addresses
  bool welcomed_ = false, refused_ = false, answered_ = false, offset_known_ = false;
  bool may_be_replaced_ = false;                    // says who is attended
  Nanos offset_, best_, best_before_, best_since_;  // what is added to our times, and what it comes from
  Nanos heard_, said_, tried_, ticked_, lost_since_, looked_, look_said_, look_heard_;
  std::string problem_;
};

Client::Client(const std::vector<std::string>& addresses, control::Join join, Poller& poller, const Clock& clock,
               Listener listener)
    : link_(std::make_unique<Link>(addresses, std::move(join), poller, clock, std::move(listener))) {}
Client::~Client() = default;

void Client::Say(const control::Said& said) { link_->Say(said); }
void Client::Tick() { link_->Tick(); }
void Client::BelongTo(const std::string& run) { link_->BelongTo(run); }
bool Client::connected() const { return link_->connected(); }
const std::string& Client::address() const { return link_->address(); }
Nanos Client::lost_since() const { return link_->lost_since(); }
const std::string& Client::problem() const { return link_->problem(); }

}  // namespace lockstep::rpc
