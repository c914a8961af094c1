#include "lockstep/rpc/server.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>

#include "link.grpc.pb.h"
#include "lockstep/base/mailbox.h"
#include "lockstep/base/open_files.h"
#include "lockstep/rpc/encode.h"
#include "lockstep/rpc/outbox.h"

namespace lockstep::rpc {
namespace {

constexpr uint64_t kOwnFiles = 256;
// Connections to the port that no agent has, scans of the network, say: they are not to lock the operator out. No more,
// for Slurm hands the limit on to its jobs.
constexpr uint64_t kStrangers = 8192;
constexpr int kGreetsMs = 5000;  // no longer are they kept, whether they say nothing or nothing more

class GrpcServer;

// One agent's stream. Deletes itself when gRPC is done with it; the server keeps it alive by then, through `self_`.
class Stream final : public grpc::ServerBidiReactor<FromAgent, FromCoordinator> {
 public:
  Stream(GrpcServer& server, uint64_t peer);
  void Begin(std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }
  // In the poller's thread.
  void Write(FromCoordinator message) {
    if (!outbox_.Add(std::move(message))) End(grpc::Status(grpc::RESOURCE_EXHAUSTED, "the agent takes no messages"));
  }
  void End(const grpc::Status& status) {
    outbox_.Close();
    if (!ended_.exchange(true)) Finish(status);
  }
  // When all is written that was said. Of a stream that ends with an error, gRPC's client drops what it has not read.
  void EndLast() {
    if (outbox_.Seal()) End(grpc::Status::OK);
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    if (outbox_.Done()) End(grpc::Status::OK);
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override;

 private:
  GrpcServer& server_;
  const uint64_t peer_;
  FromAgent incoming_;
  Outbox<FromCoordinator> outbox_;
  std::atomic<bool> ended_ = false;
  std::shared_ptr<Stream> self_;
};

class GrpcServer final : public Server, private Coordination::CallbackService {
 public:
  GrpcServer(Poller& poller, const Clock& clock, Listener listener)
      : clock_(clock), listener_(std::move(listener)), mailbox_(poller) {}

  ~GrpcServer() override {
    mailbox_.Close();
    for (const auto& [peer, stream] : streams_) stream->EndLast();
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    server_.reset();  // waits for the streams
  }

  absl::Status Listen(const std::string& address) {
    gpr_set_log_function([](gpr_log_func_args*) {});  // what is wrong we say ourselves, in one line
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second coordinator is to be refused, not joined
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kGreetsMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kGreetsMs);
    AllowOpenFiles(kOwnFiles + kStrangers);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ && port_ != 0) return absl::OkStatus();
    server_.reset();
    return Unavailable("the coordinator can't listen on {}: is the port taken, or is it another machine's address?",
                       address);
  }

  // Of gRPC's threads.
  grpc::ServerBidiReactor<FromAgent, FromCoordinator>* Attend(grpc::CallbackServerContext*) override {
    const uint64_t peer = ++last_peer_;
    auto stream = std::make_shared<Stream>(*this, peer);
    mailbox_.Post([this, peer, stream] {
      streams_[peer] = stream;
      AllowOpenFiles(2 * streams_.size() + kOwnFiles + kStrangers);
    });
    stream->Begin(stream);
    return stream.get();
  }
  void Hear(uint64_t peer, FromAgent message) {
    mailbox_.Post([this, peer, message = std::move(message)] { Take(peer, message); });
  }
  void Lose(uint64_t peer) {
    mailbox_.Post([this, peer] {
      if (streams_.erase(peer) != 0) listener_.left(peer);
    });
  }

  // Of the poller's thread.
  int port() const override { return port_; }
  void Welcome(Peer peer, const control::Place& place, const std::string& run, int64_t term) override {
    Send(peer, EncodeWelcome(place, run, term));
  }
  void Refuse(Peer peer, const std::string& why) override { Send(peer, Refused(why, false, false)); }
  void TurnAway(Peer peer, const std::string& why) override { Send(peer, Refused(why, true, false)); }
  void SendElsewhere(Peer peer, const std::string& why) override { Send(peer, Refused(why, true, true)); }
  void Tell(Peer peer, const control::Told& told) override {
    if (std::optional<FromCoordinator> message = Encode(told)) Send(peer, *std::move(message));
  }
  void Drop(Peer peer) override {
    const auto stream = streams_.extract(peer);
    if (!stream.empty()) stream.mapped()->End(grpc::Status(grpc::ABORTED, "dropped"));
  }
  void Heartbeat(bool may_be_replaced) override {
    for (const auto& [peer, stream] : streams_) stream->Write(Beat(may_be_replaced));
  }
  size_t peers() const override { return streams_.size(); }

 private:
  // The agent leaves when it has read that.
  static FromCoordinator Refused(const std::string& why, bool not_leading, bool leads_another) {
    FromCoordinator refusal;
    refusal.mutable_refusal()->set_why(why);
    refusal.mutable_refusal()->set_not_leading(not_leading);
    refusal.mutable_refusal()->set_leads_another(leads_another);
    return refusal;
  }
  FromCoordinator Beat(bool may_be_replaced) const {
    FromCoordinator beat;
    beat.mutable_heartbeat()->set_now_ns(clock_.Now().value);
    beat.mutable_heartbeat()->set_may_be_replaced(may_be_replaced);
    return beat;
  }
  void Send(Peer peer, FromCoordinator message) {
    const auto stream = streams_.find(peer);
    if (stream != streams_.end()) stream->second->Write(std::move(message));
  }
  void Take(uint64_t peer, const FromAgent& message) {
    if (!streams_.contains(peer)) return;  // dropped
    if (message.said_case() == FromAgent::kJoin) {
      Send(peer, Beat(false));  // before anything with a time in it
      return listener_.joined(peer, Decode(message.join()));
    }
    const absl::StatusOr<control::Said> said = DecodeSaid(message);
    said.ok() ? listener_.said(peer, *said) : listener_.unreadable(said.status());
  }

  const Clock& clock_;
  const Listener listener_;
  Mailbox mailbox_;
  std::atomic<uint64_t> last_peer_ = 0;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

Stream::Stream(GrpcServer& server, uint64_t peer)
    : server_(server), peer_(peer), outbox_([this](const FromCoordinator* message) { StartWrite(message); }) {}

void Stream::OnReadDone(bool ok) {
  if (!ok) return End(grpc::Status::OK);
  server_.Hear(peer_, std::move(incoming_));
  incoming_.Clear();
  StartRead(&incoming_);
}

void Stream::OnDone() {
  server_.Lose(peer_);
  self_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address, Poller& poller, const Clock& clock,
                                                      Listener listener) {
  auto server = std::make_unique<GrpcServer>(poller, clock, std::move(listener));
  LS_RETURN_IF_ERROR(server->Listen(address));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace lockstep::rpc
