// Files behind HTTP, by range requests. Connections to a server are kept and shared by all of its files and threads. A
// server that doesn't answer, or is busy (5xx, 408, 429), is asked again with growing pauses until `patience` is over:
// one that is started anew meanwhile costs time and no item. A file that is another one than it was at opening is an
// error, as is a server that doesn't answer ranges with ranges; wrong bytes never come.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/http/client.h"
#include "lockstep/http/url.h"
#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

// "bytes 0-99/1234"; of an answer that no range fits, "bytes */1234", there is only the size.
struct ContentRange {
  uint64_t first = 0, last = 0, size = 0;
  bool has_range = false;
};
std::optional<ContentRange> ParseContentRange(std::string_view text);

// The error of a file that is not the one that was opened.
absl::Status HasChanged(const std::string& path);

// One server. Thread-safe.
class HttpOrigin {
 public:
  HttpOrigin(std::string endpoint, Seconds patience) : endpoint_(std::move(endpoint)), patience_(patience) {}

  // An answer that is not "try again"; else the last error.
  absl::StatusOr<http::Answer> Ask(const http::Request& request);
  // Whoever asks or waits has an error from now on.
  void Stop();

 private:
  absl::StatusOr<http::Answer> TryOnce(const http::Request& request);
  absl::StatusOr<http::Client*> Borrow();
  void GiveBack(http::Client* client);
  bool Pause(Seconds length);

  const std::string endpoint_;
  const Seconds patience_;
  std::mutex mutex_;  // guards all below
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::vector<std::unique_ptr<http::Client>> clients_;  // as many as were in use at once
  std::vector<http::Client*> idle_;
};

// All of a file by one request, without what a range would be checked against; refused if it has more than `most`
// bytes.
absl::Status GetWhole(const std::string& url, const std::string& target, HttpOrigin& origin, uint64_t most,
                      Buffer& bytes);

class HttpFile {
 public:
  static absl::StatusOr<HttpFile> Open(const std::string& url, std::string target, std::shared_ptr<HttpOrigin> origin);

  uint64_t size() const { return size_; }
  // All of `bytes`, or an error. Thread-safe.
  absl::Status Read(uint64_t offset, std::span<uint8_t> bytes) const;

 private:
  absl::StatusOr<http::Answer> AskFor(uint64_t first, uint64_t count) const;
  absl::Status Refused(const http::Answer& answer) const;
  bool IsSame(const http::Answer& answer) const;

  std::string url_, target_;
  std::shared_ptr<HttpOrigin> origin_;
  uint64_t size_ = 0;
  std::string etag_, last_modified_;  // as they were at opening; empty: the server doesn't say
};

}  // namespace lockstep::prepare
