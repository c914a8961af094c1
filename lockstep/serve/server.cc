#include "lockstep/serve/server.h"

#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json_at.h"
#include "lockstep/base/secret.h"
#include "lockstep/serve/listener.h"
#include "lockstep/serve/metrics.h"

namespace lockstep::serve {
namespace {

constexpr size_t kThreads = 8;  // most of them wait for clients
constexpr size_t kMostConnections = 64;
constexpr Seconds kConnectionLifetime{5};
// A request is a line and some headers; nothing that we serve takes a body.
constexpr size_t kMostRequestBytes = 64 << 10;

struct Snapshot {
  Json status, incidents = Json::array();
};

// One accepted connection as the library's Stream. Reads and writes end when the client is gone, when its time is over,
// when it has sent too much, or when `stop` becomes readable: no client, however slow or silent, can hold a thread
// back.
class Connection final : public httplib::Stream {
 public:
  // `stop` must outlive the connection.
  Connection(Fd fd, const Fd& stop)
      : fd_(std::move(fd)), stop_(stop), deadline_(clock_.Now() + ToNanos(kConnectionLifetime)) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }

  // Buffered, for the library takes the head of a request byte by byte.
  ssize_t read(char* data, size_t size) override {
    if (begin_ == end_ && !Refill()) return -1;
    const size_t taken = std::min(size, end_ - begin_);
    memcpy(data, buffer_.data() + begin_, taken);
    begin_ += taken;
    return static_cast<ssize_t>(taken);
  }

  ssize_t write(const char* data, size_t size) override {
    return WaitFor(POLLOUT) ? send(fd_.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
  }

  // For handlers that log or filter by address; ours do neither.
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return fd_.get(); }

 private:
  bool Refill() {
    if (received_ >= kMostRequestBytes || !WaitFor(POLLIN)) return false;
    const ssize_t got = recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got <= 0) return false;
    begin_ = 0;
    end_ = static_cast<size_t>(got);
    received_ += end_;
    return true;
  }

  bool WaitFor(short events) const {
    std::array<pollfd, 2> wanted = {{{fd_.get(), events, 0}, {stop_.get(), POLLIN, 0}}};
    for (;;) {
      const int64_t left_ms = (deadline_ - clock_.Now()).value / 1'000'000;
      if (left_ms <= 0) return false;
      const int ready = poll(wanted.data(), wanted.size(), static_cast<int>(left_ms));
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0 && wanted[1].revents == 0;
    }
  }

  Fd fd_;
  const Fd& stop_;
  SystemClock clock_;
  Nanos deadline_;
  std::array<char, 4096> buffer_{};
  size_t begin_ = 0, end_ = 0;
  size_t received_ = 0;
};

thread_local bool no_room = false;  // for the connection that this thread has before it

// What comes when there is no room is done at once by the thread that accepts, which only closes it.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override {
    no_room = tasks_.load() >= kMostConnections;
    if (no_room) return task();
    ++tasks_;
    pool_.enqueue([this, task = std::move(task)] {
      task();
      --tasks_;
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  httplib::ThreadPool pool_{kThreads};
  std::atomic<size_t> tasks_ = 0;
};

}  // namespace

// The library's server, given its listening socket (listener.h says why) and its connections by us.
class Server::Impl final : public httplib::Server {
 public:
  Impl(Listener listener, std::string token) : port_(listener.port), token_(std::move(token)) {
    svr_sock_ = listener.fd.Release();
    stopping_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    set_payload_max_length(0);
    AddRoutes();
  }

  ~Impl() override {
    const uint64_t one = 1;
    // A full counter cannot happen and an unwritten one would only mean waiting for connections to end by themselves.
    if (write(stopping_.get(), &one, sizeof(one)) != sizeof(one)) errno = 0;
    stop();
    if (accepting_.joinable()) accepting_.join();
  }

  // Returns once the accept loop runs: stop() has no effect before that.
  void Begin() {
    std::promise<void> running;
    new_task_queue = [&running] {
      auto queue = std::make_unique<BoundedQueue>();
      running.set_value();
      return queue.release();
    };
    accepting_ = std::thread([this] { listen_after_bind(); });
    running.get_future().wait();
  }

  int port() const { return port_; }

  void Publish(Json status, Json incidents) {
    std::shared_ptr<const Snapshot> next;  // the old one, in the end: it goes without the lock
    const std::lock_guard lock(mutex_);
    KeepSymptoms(incidents);
    next = std::make_shared<const Snapshot>(Snapshot{std::move(status), std::move(incidents)});
    snapshot_.swap(next);
  }

 private:
  // The finding that leads an incident may change while it is open. It stays counted where it was at first, so that
  // no counter falls.
  void KeepSymptoms(Json& incidents) {
    for (Json& incident : incidents) {
      const int64_t id = IntegerAt(incident, "id", 0);
      if (id > 0) incident["symptom"] = symptoms_.try_emplace(id, TextAt(incident, "symptom")).first->second;
    }
  }

  std::shared_ptr<const Snapshot> Newest() {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }

  void AddRoutes() {
    set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) { return Admit(request, response); });
    Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      const std::shared_ptr<const Snapshot> snapshot = Newest();
      response.set_content(RenderMetrics(snapshot->status, snapshot->incidents),
                           "text/plain; version=0.0.4; charset=utf-8");
    });
    Get("/api/v1/status", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(RenderJson(Newest()->status), "application/json");
    });
    set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.status == 404)
        response.set_content("not found; there are /metrics and /api/v1/status\n", "text/plain");
    });
  }

  HandlerResponse Admit(const httplib::Request& request, httplib::Response& response) const {
    if (token_.empty() || SameSecret(request.get_header_value("Authorization"), "Bearer " + token_))
      return AdmitMethod(request, response);
    response.status = 401;
    response.set_header("WWW-Authenticate", "Bearer");
    response.set_content("this server wants \"Authorization: Bearer TOKEN\"\n", "text/plain");
    return HandlerResponse::Handled;
  }

  // Said before the library waits for a body.
  static HandlerResponse AdmitMethod(const httplib::Request& request, httplib::Response& response) {
    if (request.method == "GET" || request.method == "HEAD") return HandlerResponse::Unhandled;
    response.status = 405;
    response.set_header("Allow", "GET, HEAD");
    response.set_content("this server is read: it answers GET and HEAD\n", "text/plain");
    return HandlerResponse::Handled;
  }

  bool process_and_close_socket(socket_t socket) override {
    // The library accepts without SOCK_CLOEXEC.
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    Connection connection(Fd(socket), stopping_);
    if (no_room) return false;
    bool closed = false;
    // The library would serve as many ranges as are asked for, each of them anew.
    const auto without_ranges = [](httplib::Request& request) { request.ranges.clear(); };
    return process_request(connection, /*close_connection=*/true, closed, without_ranges);
  }

  const int port_;
  const std::string token_;
  Fd stopping_;  // readable when the server ends
  std::mutex mutex_;
  // Shared: a request keeps the snapshot that it began with while a newer one takes its place.
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<const Snapshot>();
  std::map<int64_t, std::string> symptoms_;  // of incidents, as each was at first
  std::thread accepting_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
int Server::port() const { return impl_->port(); }
void Server::Publish(Json status, Json incidents) { impl_->Publish(std::move(status), std::move(incidents)); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  LS_ASSIGN_OR_RETURN(Listener listener, Listen(options.host, options.port));
  if (!listener.loopback && options.token.empty()) {
    return InvalidArgument(
        "serving on {} lets other machines read this job: give a token (--token-file), or use 127.0.0.1", options.host);
  }
  auto impl = std::make_unique<Impl>(std::move(listener), options.token);
  impl->Begin();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace lockstep::serve
