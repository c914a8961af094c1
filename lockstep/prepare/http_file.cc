#include "lockstep/prepare/http_file.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>

#include "lockstep/base/steady.h"
#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {
namespace {

constexpr Seconds kFirstPause{0.1}, kLongestPause{2};  // doubled for each further one
constexpr Seconds kLongestAnswer{30};                  // and what its bytes take at this rate
constexpr double kBytesPerSecond = 1e6;

using SteadyClock = std::chrono::steady_clock;

bool MayPass(int status) { return status >= 500 || status == 408 || status == 429; }

// Takes a number off the front of `text`.
bool TakeNumber(std::string_view& text, uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return error == std::errc();
}

bool TakeText(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

// A name that was escaped twice: it came from a text, as that of a file, and was that of a URL already.
bool IsEscapedTwice(std::string_view url) {
  for (size_t at = url.find("%25"); at != std::string_view::npos; at = url.find("%25", at + 1)) {
    const std::string_view digits = url.substr(at + 3, 2);
    if (digits.size() == 2 && std::ranges::all_of(digits, [](unsigned char c) { return absl::ascii_isxdigit(c); }))
      return true;
  }
  return false;
}

absl::Status RefusedBy(const std::string& url, const http::Answer& answer) {
  switch (answer.status) {
    case 401:
    case 403:
      return MakeError(absl::StatusCode::kPermissionDenied,
                       fmt::format("{}: the server refuses it (status {})", url, answer.status));
    case 404:
    case 410:
      return NotFound("{}: the server has no such file (status {}){}", url, answer.status,
                      IsEscapedTwice(url) ? "; names in a list that is a text are those of files, and each \"%\" in "
                                            "them is escaped: write them plainly"
                                          : "");
    default:
      break;
  }
  if (answer.status >= 300 && answer.status < 400)
    return FailedPrecondition("{}: it is elsewhere (status {}): give its address itself, {}", url, answer.status,
                              answer.location);
  return Unavailable("{}: the server answers with status {}", url, answer.status);
}

}  // namespace

std::optional<ContentRange> ParseContentRange(std::string_view text) {
  ContentRange range;
  if (!TakeText(text, "bytes ")) return std::nullopt;
  range.has_range = !TakeText(text, "*");
  if (range.has_range && !(TakeNumber(text, range.first) && TakeText(text, "-") && TakeNumber(text, range.last)))
    return std::nullopt;
  if (!TakeText(text, "/") || !TakeNumber(text, range.size) || !text.empty()) return std::nullopt;
  if (range.has_range && (range.last < range.first || range.last >= range.size)) return std::nullopt;
  return range;
}

absl::Status HasChanged(const std::string& path) {
  return DataLoss("{}: it has changed since it was opened: start the service anew", path);
}

// ---- the server ----

absl::StatusOr<http::Client*> HttpOrigin::Borrow() {
  const std::lock_guard lock(mutex_);
  if (stopped_) return Unavailable("{}: stopped", endpoint_);
  if (idle_.empty()) {
    LS_ASSIGN_OR_RETURN(std::unique_ptr<http::Client> client, http::Client::Open(endpoint_));
    clients_.push_back(std::move(client));
    return clients_.back().get();
  }
  http::Client* client = idle_.back();
  idle_.pop_back();
  return client;
}

void HttpOrigin::GiveBack(http::Client* client) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(client);
}

absl::StatusOr<http::Answer> HttpOrigin::TryOnce(const http::Request& request) {
  LS_ASSIGN_OR_RETURN(http::Client* const client, Borrow());
  absl::StatusOr<http::Answer> answer = client->Send(request);
  GiveBack(client);
  return answer;
}

absl::StatusOr<http::Answer> HttpOrigin::Ask(const http::Request& request) {
  const SteadyClock::time_point end = SteadyClock::now() + SteadyDuration(patience_);
  for (Seconds pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    absl::StatusOr<http::Answer> answer = TryOnce(request);
    if (answer.ok() && !MayPass(answer->status)) return answer;
    if (SteadyClock::now() + SteadyDuration(pause) > end || !Pause(pause)) return answer;
  }
}

bool HttpOrigin::Pause(Seconds length) {
  std::unique_lock lock(mutex_);
  return !stopping_.wait_for(lock, SteadyDuration(length), [this] { return stopped_; });
}

void HttpOrigin::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  stopping_.notify_all();
  for (const std::unique_ptr<http::Client>& client : clients_) client->Stop();
}

absl::Status GetWhole(const std::string& url, const std::string& target, HttpOrigin& origin, uint64_t most,
                      Buffer& bytes) {
  http::Request request{"GET", target, {}};
  request.max_body = most;
  request.longest = kLongestAnswer;
  request.bytes_per_second = kBytesPerSecond;
  const absl::StatusOr<http::Answer> answer = origin.Ask(request);
  if (!answer.ok()) return At(std::string(WithoutQuery(url)), answer.status());
  if (answer->status != 200) return RefusedBy(std::string(WithoutQuery(url)), *answer);
  if (answer->cut)
    return MakeError(absl::StatusCode::kResourceExhausted,
                     fmt::format("{}: the limit of an item is {} bytes", WithoutQuery(url), most));
  bytes.Resize(answer->body.size());
  std::copy(answer->body.begin(), answer->body.end(), bytes.data());
  return absl::OkStatus();
}

// ---- a file ----

absl::StatusOr<HttpFile> HttpFile::Open(const std::string& url, std::string target,
                                        std::shared_ptr<HttpOrigin> origin) {
  HttpFile file;
  file.url_ = WithoutQuery(url);
  file.target_ = std::move(target);
  file.origin_ = std::move(origin);
  // A byte tells all: whether it is there, its size, and whether the server knows ranges.
  LS_ASSIGN_OR_RETURN(const http::Answer answer, file.AskFor(0, 1));
  const std::optional<ContentRange> range = ParseContentRange(answer.content_range);
  const bool is_empty = (answer.status == 416 && range && range->size == 0) ||
                        (answer.status == 200 && answer.content_length == 0 && answer.body.empty());
  if (!is_empty && answer.status != 206) return file.Refused(answer);
  if (!is_empty && (!range || !range->has_range || range->first != 0))
    return DataLoss("{}: the answer to a range request says \"{}\" of its range: expected bytes 0-0/SIZE", file.url_,
                    answer.content_range);
  file.size_ = is_empty ? 0 : range->size;
  file.etag_ = answer.etag;
  file.last_modified_ = answer.last_modified;
  return file;
}

absl::StatusOr<http::Answer> HttpFile::AskFor(uint64_t first, uint64_t count) const {
  http::Request request{"GET", target_, {{"Range", fmt::format("bytes={}-{}", first, first + count - 1)}}};
  // A weak tag says that it is alike, not that the bytes are the same.
  const bool is_strong = !etag_.empty() && !etag_.starts_with("W/");
  if (is_strong || !last_modified_.empty()) request.headers["If-Range"] = is_strong ? etag_ : last_modified_;
  request.max_body = count;
  request.longest = kLongestAnswer;
  request.bytes_per_second = kBytesPerSecond;
  absl::StatusOr<http::Answer> answer = origin_->Ask(request);
  if (!answer.ok()) return At(url_, answer.status());
  return answer;
}

bool HttpFile::IsSame(const http::Answer& answer) const {
  if (!etag_.empty() && !answer.etag.empty()) return etag_ == answer.etag;
  return last_modified_.empty() || answer.last_modified.empty() || last_modified_ == answer.last_modified;
}

absl::Status HttpFile::Refused(const http::Answer& answer) const {
  if (answer.status != 200) return RefusedBy(url_, answer);
  return FailedPrecondition(
      "{}: the server answers a range request with the whole file (status 200): expected one that knows ranges (206)",
      url_);
}

absl::Status HttpFile::Read(uint64_t offset, std::span<uint8_t> bytes) const {
  if (bytes.empty()) return absl::OkStatus();
  if (offset > size_ || bytes.size() > size_ - offset)
    return DataLoss("{}: it ends before byte {}: expected {} bytes from {} on", url_, offset + bytes.size(),
                    bytes.size(), offset);
  LS_ASSIGN_OR_RETURN(const http::Answer answer, AskFor(offset, bytes.size()));
  const std::optional<ContentRange> range = ParseContentRange(answer.content_range);
  const bool resized = answer.status == 416 || (range && range->size != size_);
  if (!IsSame(answer) || resized || answer.status == 412) return HasChanged(url_);
  if (answer.status != 206) return Refused(answer);
  if (!range || !range->has_range || range->first != offset || range->last != offset + bytes.size() - 1 || answer.cut ||
      answer.body.size() != bytes.size())
    return DataLoss("{}: asked for {} bytes from {} on, {} came that say \"{}\"", url_, bytes.size(), offset,
                    answer.body.size(), answer.content_range);
  std::memcpy(bytes.data(), answer.body.data(), bytes.size());
  return absl::OkStatus();
}

}  // namespace lockstep::prepare
