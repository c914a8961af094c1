// An HTTP server of which a test writes each answer itself, so that it can be as wrong as it likes. On a free port of
// the loopback; a thread for each connection, which is kept.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"

namespace lockstep::http {

// The value of a header of a request, or "".
inline std::string HeaderOf(const std::string& request, const std::string& name) {
  const size_t at = request.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 4;
  return request.substr(begin, request.find("\r\n", begin) - begin);
}

inline std::string AnswerText(const std::string& status, const std::string& headers, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

// What a server should answer that has `content` at every path.
inline std::string GoodAnswer(const std::string& request, const std::string& content, const std::string& etag) {
  size_t first = 0, last = 0;
  const std::string tag = "ETag: \"" + etag + "\"\r\n", if_range = HeaderOf(request, "If-Range");
  const bool has_range = sscanf(HeaderOf(request, "Range").c_str(), "bytes=%zu-%zu", &first, &last) == 2;
  if (!has_range || (!if_range.empty() && if_range != "\"" + etag + "\"")) return AnswerText("200 OK", tag, content);
  const std::string size = std::to_string(content.size());
  if (first >= content.size()) return AnswerText("416 No", "Content-Range: bytes */" + size + "\r\n", "");
  last = std::min(last, content.size() - 1);
  return AnswerText(
      "206 Partial",
      tag + "Content-Range: bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + size + "\r\n",
      content.substr(first, last - first + 1));
}

class TestServer {
 public:
  struct Answer {
    Answer(std::string all, bool ends = false) : text(std::move(all)), then_end(ends) {}  // NOLINT: from a text
    std::string text;
    bool then_end;  // the connection
  };
  // Of a request's head, what is sent. Called by the thread of a connection.
  using Handler = std::function<Answer(const std::string& request)>;

  explicit TestServer(Handler handler, uint16_t port = 0) : handler_(std::move(handler)) {
    listener_ = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    LS_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0, "{}", errno);
    LS_CHECK(listen(listener_.get(), 64) == 0, "{}", errno);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~TestServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const Fd& one : sockets_) shutdown(one.get(), SHUT_RDWR);
    }
    for (std::thread& one : threads_) one.join();
  }
  TestServer(const TestServer&) = delete;

  uint16_t port() const { return port_; }
  std::string Url(const std::string& path) const { return "http://127.0.0.1:" + std::to_string(port_) + path; }
  int connections() const { return connections_; }
  int requests() const { return requests_; }

 private:
  void Accept() {
    for (;;) {
      Fd one(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!one.valid()) return;
      ++connections_;
      const std::lock_guard lock(mutex_);
      threads_.emplace_back([this, socket = one.get()] { Serve(socket); });
      sockets_.push_back(std::move(one));
    }
  }
  void Serve(int socket) {
    std::string text;
    char piece[4096];
    for (;;) {
      for (size_t end; (end = text.find("\r\n\r\n")) != std::string::npos; text.erase(0, end + 4)) {
        ++requests_;
        const Answer answer = handler_(text.substr(0, end + 2));
        if (send(socket, answer.text.data(), answer.text.size(), MSG_NOSIGNAL) < 0 || answer.then_end) {
          shutdown(socket, SHUT_RDWR);
          return;
        }
      }
      const ssize_t got = recv(socket, piece, sizeof piece, 0);
      if (got <= 0) return;
      text.append(piece, static_cast<size_t>(got));
    }
  }

  Handler handler_;
  Fd listener_;
  uint16_t port_ = 0;
  std::atomic<int> connections_ = 0, requests_ = 0;
  std::mutex mutex_;  // guards the two below
  std::vector<Fd> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace lockstep::http
