#include "lockstep/relay/sender.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "batches.grpc.pb.h"
#include "lockstep/base/host.h"
#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/secret.h"
#include "lockstep/client/feed_ring.h"
#include "lockstep/feed/door.h"
#include "lockstep/relay/far.h"
#include "lockstep/relay/local_rank.h"

namespace lockstep::relay {
namespace {

constexpr size_t kPieceBytes = 1 << 20;  // of a batch at a time: bounds what gRPC holds for each rank
constexpr int kMostMessageBytes = kMostIdsBytes + kMaxPacket;

// Ranks that are sent to, by job and number. One that comes again, from a machine that has lost it or took its place,
// waits for the stream that it had: that of a machine which vanished ends when gRPC misses its pings.
class Turns {
 public:
  using Key = std::pair<std::string, int64_t>;

  void Begin(const Key& key, const std::function<bool()>& goes_on) {
    std::unique_lock lock(mutex_);
    const auto latest = std::chrono::steady_clock::now() + kPingsMissed + std::chrono::seconds(2);
    while (taken_.contains(key) && goes_on() && std::chrono::steady_clock::now() < latest)
      ended_.wait_for(lock, std::chrono::milliseconds(100));
    taken_.insert(key);  // twice, if the other is alive: the service refuses the second, with its reason
  }
  void End(const Key& key) {
    const std::lock_guard lock(mutex_);
    taken_.erase(taken_.find(key));
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards taken_
  std::condition_variable ended_;
  std::multiset<Key> taken_;
};

class Turn {
 public:
  Turn(Turns& turns, const std::string& packet, const std::function<bool()>& goes_on) : turns_(turns) {
    const Json join = ParseJson(packet);
    key_ = {TextAt(join, "job"), IntegerAt(join, "rank", -1)};
    turns_.Begin(key_, goes_on);
  }
  Turn(const Turn&) = delete;
  ~Turn() { turns_.End(key_); }

 private:
  Turns& turns_;
  Turns::Key key_;
};

Part Welcome(const LocalRank& rank) {
  Part part;
  Joined& joined = *part.mutable_joined();
  joined.set_answer(rank.answer());
  joined.set_version(LS_FEED_VERSION);
  joined.set_slots(rank.shape().slots);
  joined.set_capacity(rank.shape().capacity);
  joined.set_item_bytes(rank.shape().item_bytes);
  return part;
}

class BatchSender final : public Sender, private Batches::Service {
 public:
  explicit BatchSender(SenderOptions options) : options_(std::move(options)) {}
  ~BatchSender() override {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen() {
    gpr_set_log_function([](gpr_log_func_args*) {});  // what is wrong we say ourselves, in one line
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPongMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingEveryMs / 2);
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    builder.AddListeningPort(options_.address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ && port_ != 0) return absl::OkStatus();
    server_.reset();
    return Unavailable("--listen {}: the address can't be had: is the port taken, or is it another machine's?",
                       options_.address);
  }
  int port() const override { return port_; }

 private:
  using Writer = grpc::ServerWriter<Part>;

  grpc::Status Stream(grpc::ServerContext* context, const Join* join, Writer* writer) override {
    if (!MayAsk(*context)) return Unknown();
    const auto goes_on = [context] { return !context->IsCancelled(); };
    const Turn turn(turns_, join->packet(), goes_on);
    const auto rank = LocalRank::Join(options_.socket, join->packet(), join->ids(), goes_on);
    if (!rank.ok()) return End(rank.status(), *writer);
    bool takes = writer->Write(Welcome(**rank));
    while (takes && goes_on()) {
      const absl::StatusOr<std::optional<LocalRank::Batch>> batch = (*rank)->Take();
      if (!batch.ok()) return End(batch.status(), *writer);
      if (!*batch) continue;
      takes = Send(**batch, *writer);
      (*rank)->GiveBack(**batch);
    }
    return grpc::Status::OK;
  }

  grpc::Status Status(grpc::ServerContext* context, const StatusQuestion*, StatusAnswer* answer) override {
    if (!MayAsk(*context)) return Unknown();
    const absl::StatusOr<Json> report = feed::AskStatus(options_.socket);
    if (!report.ok()) return {grpc::UNAVAILABLE, Message(report.status())};
    answer->set_report(OneLine(*report));
    return grpc::Status::OK;
  }

  // False: nobody takes any more.
  static bool Send(const LocalRank::Batch& batch, Writer& writer) {
    Part part;
    part.set_head(batch.head.data(), batch.head.size());
    if (!writer.Write(part)) return false;
    for (size_t at = 0; at < batch.payload.size(); at += kPieceBytes) {
      const std::string_view piece = batch.payload.substr(at, kPieceBytes);
      part.set_payload(piece.data(), piece.size());
      if (!writer.Write(part)) return false;
    }
    return true;
  }

  static grpc::Status End(const absl::Status& why, Writer& writer) {
    if (why.code() == absl::StatusCode::kUnavailable) return {grpc::UNAVAILABLE, Message(why)};
    Part part;
    part.set_refusal(Message(why));
    writer.Write(part);
    return grpc::Status::OK;
  }

  bool MayAsk(const grpc::ServerContext& context) const {
    if (options_.token.empty()) return true;
    const auto given = context.client_metadata().find(kAuthorization);
    return given != context.client_metadata().end() &&
           SameSecret({given->second.data(), given->second.size()}, Bearer(options_.token));
  }
  static grpc::Status Unknown() {
    return {grpc::UNAUTHENTICATED, "this data service wants its token: give --token-file"};
  }

  const SenderOptions options_;
  Turns turns_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sender>> Sender::Start(const SenderOptions& options) {
  const std::optional<Endpoint> endpoint = ParseEndpoint(options.address);
  if (!endpoint || !endpoint->port)
    return InvalidArgument("--listen {}: expected HOST:PORT, such as 0.0.0.0:29600", options.address);
  if (options.token.empty() && !IsLoopback(endpoint->host))
    return InvalidArgument(
        "--listen {}: other machines could read this data: give a token (--token-file), or use 127.0.0.1",
        options.address);
  auto sender = std::make_unique<BatchSender>(options);
  LS_RETURN_IF_ERROR(sender->Listen());
  return std::unique_ptr<Sender>(std::move(sender));
}

}  // namespace lockstep::relay
