#include "lockstep/remote/http.h"

#include <httplib.h>

#include <charconv>

namespace lockstep::remote {
namespace {

constexpr int kConnectSeconds = 5, kAnswerSeconds = 30;

uint64_t NumberOf(const std::string& text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

class Client final : public Http {
 public:
  explicit Client(const std::string& endpoint) : client_(endpoint), endpoint_(endpoint) {
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    client_.set_url_encode(false);  // what was signed is sent
    client_.set_connection_timeout(kConnectSeconds);
    client_.set_read_timeout(kAnswerSeconds);
    client_.set_write_timeout(kAnswerSeconds);
  }
  bool valid() const { return client_.is_valid(); }

  absl::StatusOr<HttpAnswer> Send(const HttpRequest& request) override {
    httplib::Request wire;
    wire.method = request.method;
    wire.path = request.target;
    wire.headers.insert(request.headers.begin(), request.headers.end());
    wire.headers.emplace("Accept-Encoding", "identity");
    wire.body.assign(reinterpret_cast<const char*>(request.body.data()), request.body.size());
    const httplib::Result result = client_.send(wire);
    if (!result) return Unavailable("{}: {} failed", endpoint_, httplib::to_string(result.error()));
    return HttpAnswer{result->status, result->body, result->get_header_value("ETag"),
                      NumberOf(result->get_header_value("Content-Length"))};
  }

 private:
  httplib::Client client_;
  std::string endpoint_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Http>> Http::Open(const std::string& endpoint) {
  auto client = std::make_unique<Client>(endpoint);
  if (!client->valid())
    return InvalidArgument("{} is no endpoint: expected http://HOST[:PORT] or https://...", endpoint);
  return client;
}

}  // namespace lockstep::remote
