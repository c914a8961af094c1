#include "lockstep/relay/relay.h"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/host.h"
#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"
#include "lockstep/base/steady.h"
#include "lockstep/feed/door.h"
#include "lockstep/relay/carrier.h"
#include "lockstep/relay/far.h"

namespace lockstep::relay {
namespace {

constexpr std::chrono::seconds kStatusAnswer{5};
constexpr std::chrono::milliseconds kRetry{250};

absl::StatusOr<Json> AskFar(const Far& far, grpc::ClientContext& context) {
  far.Sign(context);
  StatusAnswer answer;
  const grpc::Status asked = far.Reach()->Status(&context, StatusQuestion{}, &answer);
  if (!asked.ok()) return far.Problem(asked);
  Json report = ParseJson(answer.report());
  if (!report.is_object()) return Unavailable("feed://{}: a status that can't be read", far.address);
  return report;
}

// A service that starts at the same time may be there a little later.
absl::StatusOr<Json> AskPatiently(const Far& far, Seconds patience) {
  const auto latest = std::chrono::steady_clock::now() + SteadyDuration(patience);
  for (;;) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kStatusAnswer);
    absl::StatusOr<Json> report = AskFar(far, context);
    const bool may_come = report.status().code() == absl::StatusCode::kUnavailable;
    if (!may_come || std::chrono::steady_clock::now() > latest) return report;
    std::this_thread::sleep_for(kRetry);
  }
}

// Answers a guest that asks for the status, in a thread of its own: the other machine may take its time.
class Inquiry {
 public:
  using Complete = std::function<void(Json&)>;

  Inquiry(const Far& far, int guest, Complete complete)
      : thread_([this, &far, guest, complete = std::move(complete)] {
          context_.set_deadline(std::chrono::system_clock::now() + kStatusAnswer);
          absl::StatusOr<Json> report = AskFar(far, context_);
          if (!report.ok()) report = Json{{"error", Message(report.status())}};
          complete(*report);
          SendText(guest, OneLine(*report)).IgnoreError();
        }) {}
  ~Inquiry() {
    context_.TryCancel();
    thread_.join();
  }

 private:
  grpc::ClientContext context_;
  std::thread thread_;
};

// What a rank's request says beside it, as bytes.
absl::StatusOr<std::string> BytesOf(const std::vector<Fd>& fds) {
  if (fds.empty()) return "";
  struct stat info{};
  if (fstat(fds[0].get(), &info) != 0) return Errno(errno, "where: what came beside the request");
  if (info.st_size < 0 || info.st_size > kMostIdsBytes)
    return InvalidArgument("where: {} bytes of ids, expected at most {}", info.st_size, kMostIdsBytes);
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  if (ReadAt(fds[0].get(), std::as_writable_bytes(std::span(bytes)), 0) < bytes.size())
    return Errno(errno == 0 ? EIO : errno, "where: reading {} bytes of ids", bytes.size());
  return bytes;
}

class FarRelay final : public Relay {
 public:
  FarRelay(RelayOptions options, std::string far_name, uint64_t items, std::unique_ptr<feed::Door> door,
           const Clock& clock)
      : options_(std::move(options)),
        far_{options_.address, options_.token},
        far_name_(std::move(far_name)),
        items_(items),
        clock_(clock),
        door_(std::move(door)) {
    carried_.ring_limit = options_.ring_bytes;
    door_->Listen({.said = [this](int guest, Packet packet) { Answer(guest, std::move(packet)); },
                   .left =
                       [this](int guest) {
                         carriers_.erase(guest);
                         inquiries_.erase(guest);
                       }});
  }

  const std::string& name() const override { return options_.name; }
  uint64_t items() const override { return items_; }

 private:
  void Answer(int guest, Packet packet) {
    const auto carrier = carriers_.find(guest);
    if (packet.text == "r") {
      if (carrier != carriers_.end()) carrier->second.Wake();
      return;
    }
    Json request = ParseJson(packet.text);
    const std::string op = TextAt(request, "op");
    absl::Status answered;
    if (op == "status") {
      inquiries_.erase(guest);
      inquiries_.try_emplace(guest, far_, guest, [this](Json& report) { Complete(report); });
    } else if (op == "join" && carrier == carriers_.end()) {
      answered = Join(guest, std::move(request), packet.fds);
    } else {
      answered = InvalidArgument("expected join or status, found \"{}\"", op);
    }
    if (!answered.ok() && !SendPacket(guest, OneLine(Json{{"error", Message(answered)}})).ok()) door_->SendAway(guest);
  }

  absl::Status Join(int guest, Json request, const std::vector<Fd>& fds) {
    if (TextAt(request, "dataset") != options_.name)
      return NotFound("there is no data set \"{}\" at {}; this service has \"{}\"", TextAt(request, "dataset"),
                      options_.socket, options_.name);
    relay::Join join;
    LS_ASSIGN_OR_RETURN(*join.mutable_ids(), BytesOf(fds));
    request["dataset"] = far_name_;
    request["from"] = {{"host", HostName()}, {"pid", door_->ProcessOf(guest)}};
    request["apart"] = false;  // all its ranks come to that one service
    join.set_packet(OneLine(request));
    carriers_.try_emplace(guest, far_, std::move(join), guest, carried_, clock_);
    return absl::OkStatus();
  }

  // Of the status there, what of it is here.
  void Complete(Json& report) const {
    report["relay"] = {{"of", kScheme + far_.address},   {"data_set", options_.name},
                       {"socket", options_.socket},      {"pid", getpid()},
                       {"ranks", carried_.ranks.load()}, {"batches", carried_.batches.load()},
                       {"bytes", carried_.bytes.load()}, {"ring_bytes", carried_.ring_bytes.load()}};
  }

  const RelayOptions options_;
  const Far far_;
  const std::string far_name_;
  const uint64_t items_;
  const Clock& clock_;
  Carried carried_;
  std::map<int, Carrier> carriers_;   // by guest
  std::map<int, Inquiry> inquiries_;  // likewise
  const std::unique_ptr<feed::Door> door_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Relay>> Relay::Open(const RelayOptions& options, Poller& poller, const Clock& clock) {
  const Far far{options.address, options.token};
  LS_ASSIGN_OR_RETURN(const Json report, AskPatiently(far, options.patience));
  RelayOptions named = options;
  const std::string far_name = TextAt(report, "data_set");
  if (named.name.empty()) named.name = far_name;
  LS_ASSIGN_OR_RETURN(std::unique_ptr<feed::Door> door, feed::Door::Open(options.socket, poller));
  return std::make_unique<FarRelay>(std::move(named), far_name, static_cast<uint64_t>(IntegerAt(report, "items", 0)),
                                    std::move(door), clock);
}

}  // namespace lockstep::relay
