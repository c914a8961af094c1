#include "lockstep/http/client.h"

#include <httplib.h>

#include <atomic>
#include <charconv>
#include <chrono>

#include "lockstep/base/steady.h"

namespace lockstep::http {
namespace {

constexpr int kConnectSeconds = 5, kAnswerSeconds = 30;

uint64_t NumberOf(const std::string& text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Takes the answer as it comes, so that one without end is neither kept nor waited for.
class Taking {
 public:
  explicit Taking(const Request& request)
      : max_body_(request.max_body), longest_(request.longest), bytes_per_second_(request.bytes_per_second) {}

  void AddTo(httplib::Request& wire) {
    wire.response_handler = [this](const httplib::Response& head) {
      TakeHead(head);
      return true;
    };
    wire.content_receiver = [this](const char* data, size_t size, uint64_t, uint64_t) { return TakeBody(data, size); };
  }
  void TakeHead(const httplib::Response& head) {
    answer_.status = head.status;
    answer_.etag = head.get_header_value("ETag");
    answer_.last_modified = head.get_header_value("Last-Modified");
    answer_.content_range = head.get_header_value("Content-Range");
    answer_.location = head.get_header_value("Location");
    answer_.content_length = NumberOf(head.get_header_value("Content-Length"));
  }
  bool is_cut() const { return answer_.cut; }
  bool is_late() const { return late_; }
  // Until when it has time. Its head says how many bytes it has, or else what has come does.
  Seconds limit() const {
    const uint64_t said = std::min<uint64_t>(answer_.content_length, max_body_);
    return longest_ + Seconds{static_cast<double>(std::max<uint64_t>(said, answer_.body.size())) / bytes_per_second_};
  }
  bool has_begun() const { return answer_.status != 0; }
  Answer& answer() { return answer_; }

 private:
  bool TakeBody(const char* data, size_t size) {
    const size_t room = max_body_ - answer_.body.size();
    answer_.body.append(data, std::min(size, room));
    answer_.cut = size > room;
    late_ = std::chrono::steady_clock::now() > begin_ + SteadyDuration(limit());
    return !answer_.cut && !late_;
  }

  const size_t max_body_;
  const Seconds longest_;
  const double bytes_per_second_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Answer answer_;
  bool late_ = false;
};

class Kept final : public Client {
 public:
  explicit Kept(const std::string& endpoint) : client_(endpoint), endpoint_(endpoint) {
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    client_.set_url_encode(false);  // what was signed is sent
    client_.set_connection_timeout(kConnectSeconds);
    client_.set_read_timeout(kAnswerSeconds);
    client_.set_write_timeout(kAnswerSeconds);
  }
  bool valid() const { return client_.is_valid(); }

  absl::StatusOr<Answer> Send(const Request& request) override {
    // A server may close a kept connection in the moment in which a request goes out on it. Such a one is sent once
    // more, on a connection of its own, unless twice is not the same as once.
    const bool may_repeat = client_.is_socket_open() > 0 && request.method != "POST";
    const auto begin = std::chrono::steady_clock::now();
    Taking taking(request);
    httplib::Result result = SendOnce(request, taking);
    const bool in_time = std::chrono::steady_clock::now() - begin < std::chrono::seconds(kAnswerSeconds);
    const bool closed = result.error() == httplib::Error::Read || result.error() == httplib::Error::Write;
    if (closed && !taking.has_begun() && may_repeat && in_time && !stopped_) result = SendOnce(request, taking);
    if (taking.is_late())
      return Unavailable("{}: the answer was not whole after {:.0f} s", endpoint_, taking.limit().value);
    if (!result && !taking.is_cut()) return Unavailable("{}: {} failed", endpoint_, httplib::to_string(result.error()));
    if (result) taking.TakeHead(*result);  // also of answers that have no body
    return std::move(taking.answer());
  }
  void Stop() override {
    stopped_ = true;
    client_.stop();
  }

 private:
  httplib::Result SendOnce(const Request& request, Taking& taking) {
    httplib::Request wire;
    wire.method = request.method;
    wire.path = request.target;
    wire.headers.insert(request.headers.begin(), request.headers.end());
    wire.headers.emplace("Accept-Encoding", "identity");
    wire.body.assign(reinterpret_cast<const char*>(request.body.data()), request.body.size());
    taking.AddTo(wire);
    return client_.send(wire);
  }

  httplib::Client client_;
  std::string endpoint_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const std::string& endpoint) {
  // Of another scheme, the library throws.
  const bool is_http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  auto client = is_http ? std::make_unique<Kept>(endpoint) : nullptr;
  if (client == nullptr || !client->valid())
    return InvalidArgument("{} is no endpoint: expected http://HOST[:PORT] or https://...", endpoint);
  return client;
}

}  // namespace lockstep::http
