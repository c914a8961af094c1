#include "lockstep/serve/webhook.h"

#include <fcntl.h>
#include <httplib.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/host.h"
#include "lockstep/base/log.h"
#include "lockstep/base/steady.h"
#include "lockstep/http/url.h"

namespace lockstep::serve {
namespace {

// The socket of the request in flight, held by a second descriptor: the library may close its own at any moment and the
// number may by then mean something else. Shutting this one down ends connect, send and receive alike.
class InFlight {
 public:
  void Begin(int socket) {
    const std::lock_guard lock(mutex_);
    held_ = Fd(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    if (aborted_) shutdown(held_.get(), SHUT_RDWR);
  }
  void End() {
    const std::lock_guard lock(mutex_);
    held_.Close();
  }
  // This one alone; and that of Abort, all that come.
  void Cut() {
    const std::lock_guard lock(mutex_);
    if (held_.valid()) shutdown(held_.get(), SHUT_RDWR);
  }
  void Abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    if (held_.valid()) shutdown(held_.get(), SHUT_RDWR);
  }

 private:
  std::mutex mutex_;
  Fd held_;
  bool aborted_ = false;
};

constexpr size_t kMostTaken = 16 << 10;  // bytes of an answer behind its head

struct Reply {
  int status = 0;  // 0: there was none
  httplib::Error error = httplib::Error::Unknown;
};

enum class Outcome : uint8_t { kDelivered, kRetry, kRefused };

Outcome OutcomeOf(int http_status) {
  if (http_status >= 200 && http_status < 300) return Outcome::kDelivered;
  const bool may_pass = http_status >= 500 || http_status == 408 || http_status == 429;
  return may_pass ? Outcome::kRetry : Outcome::kRefused;
}

}  // namespace

Json ToJson(const WebhookCounts& counts) {
  return {{"delivered", counts.delivered}, {"failed", counts.failed}, {"dropped", counts.dropped}};
}

class Webhook::Impl {
 public:
  Impl(http::Url url, const WebhookOptions& options) : url_(std::move(url)), options_(options) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }

  ~Impl() {
    thread_.request_stop();
    in_flight_.Abort();
  }

  void Post(std::string body) {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= options_.queue) {
      ++counts_.dropped;
      return;
    }
    waiting_.push_back(std::move(body));
    changed_.notify_all();
  }

  WebhookCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  bool Drain(Seconds at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, SteadyDuration(at_most), [this] { return waiting_.empty() && !busy_; });
  }

 private:
  void Run(const std::stop_token& stop) {
    while (const std::optional<std::string> body = Next(stop)) {
      const bool delivered = Deliver(*body, stop);
      if (stop.stop_requested()) return;
      const std::lock_guard lock(mutex_);
      ++(delivered ? counts_.delivered : counts_.failed);
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::optional<std::string> Next(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return std::nullopt;
    std::string body = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    return body;
  }

  bool Deliver(const std::string& body, const std::stop_token& stop) {
    std::string trouble;
    Seconds pause = options_.backoff;
    for (int attempt = 1; attempt <= options_.tries; ++attempt, pause = pause * 2) {
      const Outcome outcome = Try(body, stop, trouble);
      if (outcome == Outcome::kDelivered) return true;
      if (outcome == Outcome::kRefused || attempt == options_.tries) break;
      if (!Pause(pause, stop)) return false;
    }
    if (!stop.stop_requested())
      Log(LogLevel::kWarning, "webhook {}: {}; this incident is not told there", url_.Origin(), trouble);
    return false;
  }

  // False when it is time to end.
  bool Pause(Seconds length, const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any never;
    never.wait_for(lock, stop, SteadyDuration(length), [] { return false; });
    return !stop.stop_requested();
  }

  Outcome Try(const std::string& body, const std::stop_token& stop, std::string& trouble) {
    const auto addresses = LookUp(url_.host, options_.timeout, stop);
    trouble = addresses ? "unknown host" : "the name look-up took too long";
    if (!addresses) return Outcome::kRetry;
    for (const std::string& address : *addresses) {
      const std::unique_ptr<httplib::ClientImpl> client = MakeClient(address);
      const Reply reply = Ask(*client, body);
      in_flight_.End();
      trouble = reply.status != 0 ? fmt::format("answered with status {}", reply.status)
                                  : httplib::to_string(reply.error) + " failed";
      if (reply.status != 0) return OutcomeOf(reply.status);
      if (stop.stop_requested()) break;
    }
    return Outcome::kRetry;
  }

  // Only the status matters: what comes behind it is not kept, and one without end is not waited for.
  Reply Ask(httplib::ClientImpl& client, const std::string& body) {
    Reply reply;
    size_t taken = 0;
    httplib::Request request;
    request.method = "POST";
    request.path = url_.target;
    request.body = body;
    request.set_header("Content-Type", "application/json");
    request.response_handler = [&](const httplib::Response& head) {
      reply.status = head.status;
      return true;
    };
    request.content_receiver = [&](const char*, size_t size, uint64_t, uint64_t) {
      return (taken += size) <= kMostTaken;
    };
    // The library's timeouts are for each read: of an answer that comes in drops they would never be over.
    const std::jthread timer([&](const std::stop_token& answered) {
      if (Pause(options_.timeout * 3, answered)) in_flight_.Cut();
    });
    const httplib::Result result = client.send(request);
    if (result) reply.status = result->status;
    reply.error = result.error();
    return reply;
  }

  std::unique_ptr<httplib::ClientImpl> MakeClient(const std::string& address) {
    std::unique_ptr<httplib::ClientImpl> client;
#ifdef CPPHTTPLIB_OPENSSL_SUPPORT
    if (url_.tls) client = std::make_unique<httplib::SSLClient>(url_.host, url_.port);
#endif
    if (!client) client = std::make_unique<httplib::ClientImpl>(url_.host, url_.port);
    const auto timeout = SteadyDuration(options_.timeout);
    client->set_connection_timeout(timeout);
    client->set_read_timeout(timeout);
    client->set_write_timeout(timeout);
    // The name stays what certificates and the Host header are about.
    client->set_hostname_addr_map({{url_.host, address}});
    client->set_socket_options([this](socket_t socket) { in_flight_.Begin(socket); });
    return client;
  }

  const http::Url url_;
  const WebhookOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;  // a message came, or one is done with
  std::deque<std::string> waiting_;
  bool busy_ = false;
  WebhookCounts counts_;
  InFlight in_flight_;
  std::jthread thread_;  // last: it uses all of the above
};

Webhook::Webhook(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Webhook::~Webhook() = default;
void Webhook::Post(const Json& incident) { impl_->Post(RenderJson(incident)); }
WebhookCounts Webhook::counts() const { return impl_->counts(); }
bool Webhook::Drain(Seconds at_most) { return impl_->Drain(at_most); }

absl::StatusOr<std::unique_ptr<Webhook>> Webhook::Start(const WebhookOptions& options) {
  const absl::StatusOr<http::Url> url = http::ParseUrl(options.url);
  if (!url.ok()) return InvalidArgument("webhook: {}", Message(url.status()));
#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
  if (url->tls) return InvalidArgument("webhook: this build's HTTP library has no TLS; use http:// or a local relay");
#endif
  return std::unique_ptr<Webhook>(new Webhook(std::make_unique<Impl>(*url, options)));
}

}  // namespace lockstep::serve
