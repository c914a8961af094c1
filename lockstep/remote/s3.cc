#include "lockstep/remote/s3.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>

#include "lockstep/remote/xml.h"

namespace lockstep::remote {
namespace {

constexpr int kTries = 5;
constexpr Seconds kFirstPause{0.25};  // doubled for each further one: 3.75 s in all
constexpr size_t kMaxPages = 1000;    // of a listing: a million keys
// Of an answer that is no piece of an object: the longest are pages of a listing, of 1000 keys of at most 1 KiB.
constexpr size_t kLongestAnswer = 8 << 20;

std::string FromEnvironment(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::string TimeText(Nanos wall) {
  const time_t seconds = wall.value / 1'000'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return std::string(text, strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &parts));
}

// 200 with an error inside is how S3 says that putting parts together failed on its side.
bool MayPass(const std::string& method, const http::Answer& answer) {
  return answer.status >= 500 || answer.status == 408 || answer.status == 429 ||
         (method == "POST" && XmlText(answer.body, "Code") == "InternalError");
}

// A store says by its code what is not there; a 404 without one comes from what stands in its place, and is no word of
// the store. To HEAD there is no body that could hold one. What a listing names is the bucket, which is no object.
bool IsAbsence(const std::string& method, const std::string& key, const http::Answer& answer) {
  if (answer.status != 404 || key.empty()) return false;
  const std::string code = XmlText(answer.body, "Code");
  return method == "HEAD" || code == "NoSuchKey" || code == "NoSuchUpload";
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace

S3Settings S3SettingsFromEnvironment() {
  return {FromEnvironment("AWS_ENDPOINT_URL"),
          FromEnvironment("AWS_REGION", FromEnvironment("AWS_DEFAULT_REGION", "us-east-1")),
          {FromEnvironment("AWS_ACCESS_KEY_ID"), FromEnvironment("AWS_SECRET_ACCESS_KEY"),
           FromEnvironment("AWS_SESSION_TOKEN")}};
}

S3::S3(std::string bucket, const S3Settings& settings, const Clock& clock, checkpoint::GoOn go_on)
    : bucket_(std::move(bucket)), settings_(settings), clock_(&clock), go_on_(std::move(go_on)) {
  // AWS itself wants the bucket in the host's name; what stands behind an endpoint of one's own mostly knows paths.
  if (settings_.endpoint.empty()) {
    host_ = fmt::format("{}.s3.{}.amazonaws.com", bucket_, settings_.region);
    settings_.endpoint = "https://" + host_;
    base_ = "/";
  } else {
    while (settings_.endpoint.ends_with('/')) settings_.endpoint.pop_back();
    host_ = settings_.endpoint.substr(settings_.endpoint.find("://") + 3);
    base_ = "/" + Encode(bucket_, false) + "/";
  }
}

absl::StatusOr<S3> S3::Open(const std::string& bucket, const S3Settings& settings, const Clock& clock,
                            checkpoint::GoOn go_on) {
  const std::string& endpoint = settings.endpoint;
  if (settings.keys.access.empty() || settings.keys.secret.empty())
    return InvalidArgument("s3://{} needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment", bucket);
  if (!endpoint.empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://"))
    return InvalidArgument("AWS_ENDPOINT_URL must begin with http:// or https://, found \"{}\"", endpoint);
  S3 s3(bucket, settings, clock, std::move(go_on));
  if (s3.host_.find('/') != std::string::npos)
    return InvalidArgument("AWS_ENDPOINT_URL must have no path, found \"{}\"", endpoint);
  LS_ASSIGN_OR_RETURN(s3.http_, http::Client::Open(s3.settings_.endpoint));
  return s3;
}

absl::StatusOr<http::Answer> S3::TryOnce(const std::string& method, const std::string& key, const Query& query,
                                         std::span<const std::byte> body, const Range& range) {
  const std::string time = TimeText(clock_->WallNow());
  Signable request{method, base_ + Encode(key, true), query, {}, HexSha256(body)};
  request.headers = {{"host", host_}, {"x-amz-content-sha256", request.payload_hash}, {"x-amz-date", time}};
  if (range.size > 0)
    request.headers["range"] = fmt::format("bytes={}-{}", range.offset, range.offset + range.size - 1);
  if (!settings_.keys.session.empty()) request.headers["x-amz-security-token"] = settings_.keys.session;
  http::Request wire{method, request.path + (query.empty() ? "" : "?" + QueryText(query)), request.headers, body,
                     std::max(range.size, kLongestAnswer)};
  wire.headers["authorization"] = Authorization(request, settings_.keys, {settings_.region, "s3"}, time);
  return http_->Send(wire);
}

absl::StatusOr<http::Answer> S3::Ask(const std::string& method, const std::string& key, const Query& query,
                                     std::span<const std::byte> body, const Range& range) {
  const size_t longest = range.size > 0 ? range.size : kLongestAnswer;
  Seconds pause = kFirstPause;
  for (int attempt = 1;; ++attempt, pause = pause * 2) {
    absl::StatusOr<http::Answer> answer = TryOnce(method, key, query, body, range);
    if (answer.ok() && !MayPass(method, *answer)) {
      const bool done = answer->status < 300 && (method != "POST" || XmlElements(answer->body, "Code").empty());
      if (!done) return Refused(method, key, *answer);
      if (!answer->cut && answer->body.size() <= longest) return answer;
      return Unavailable("{} s3://{}/{}: {} answered with more than {} bytes{}", method, bucket_, key,
                         settings_.endpoint, longest, range.size > 0 ? ", of which it was asked for no more" : "");
    }
    if (attempt == kTries || !Pause(pause)) {
      if (!answer.ok()) return answer.status();
      return Refused(method, key, *answer);
    }
  }
}

absl::Status S3::Refused(const std::string& method, const std::string& key, const http::Answer& answer) const {
  const std::string what = fmt::format("s3://{}/{}", bucket_, key);
  if (IsAbsence(method, key, answer)) return NotFound("{}: not there", what);
  const std::string code = XmlText(answer.body, "Code"), message = XmlText(answer.body, "Message");
  const bool stranger = code.empty() && answer.status == 404;
  return MakeError(answer.status == 403 ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kUnavailable,
                   fmt::format("{} {}: {} answered with status {}{}{}{}", method, what, settings_.endpoint,
                               answer.status, code.empty() ? "" : ", " + code, message.empty() ? "" : ", " + message,
                               stranger ? ", and not as S3 does: see whether AWS_ENDPOINT_URL is right" : ""));
}

// In pieces, so that giving up is heard.
bool S3::Pause(Seconds length) const {
  for (double left = length.value; left > 0 && go_on_(); left -= 0.05)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.05)));
  return go_on_();
}

absl::Status S3::Put(const std::string& key, std::span<const std::byte> data) {
  return Ask("PUT", key, {}, data).status();
}

absl::StatusOr<std::string> S3::BeginParts(const std::string& key) {
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Ask("POST", key, {{"uploads", ""}}, {}));
  std::string upload = XmlText(answer.body, "UploadId");
  if (upload.empty()) return DataLoss("s3://{}/{}: the store gave no UploadId", bucket_, key);
  return upload;
}

absl::StatusOr<std::string> S3::PutPart(const std::string& key, const std::string& upload, size_t number,
                                        std::span<const std::byte> data) {
  LS_ASSIGN_OR_RETURN(const http::Answer answer,
                      Ask("PUT", key, {{"partNumber", std::to_string(number)}, {"uploadId", upload}}, data));
  return answer.etag;
}

absl::Status S3::EndParts(const std::string& key, const std::string& upload, const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i)
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etags[i]);
  body += "</CompleteMultipartUpload>";
  return Ask("POST", key, {{"uploadId", upload}}, BytesOf(body)).status();
}

absl::Status S3::AbortParts(const std::string& key, const std::string& upload) {
  const absl::Status status = Ask("DELETE", key, {{"uploadId", upload}}, {}).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<S3::Upload>> S3::Uploads(const std::string& prefix) {
  std::vector<Upload> uploads;
  Query query = {{"uploads", ""}, {"prefix", prefix}};
  for (size_t page = 0; page < kMaxPages; ++page) {
    LS_ASSIGN_OR_RETURN(const http::Answer answer, Ask("GET", "", query, {}));
    for (const std::string& one : XmlElements(answer.body, "Upload"))
      uploads.push_back({XmlText(one, "Key"), XmlText(one, "UploadId")});
    query["key-marker"] = XmlText(answer.body, "NextKeyMarker");
    query["upload-id-marker"] = XmlText(answer.body, "NextUploadIdMarker");
    if (XmlText(answer.body, "IsTruncated") != "true" || query["key-marker"].empty()) return uploads;
  }
  return DataLoss("s3://{}/{}: more than {} pages of uploads", bucket_, prefix, kMaxPages);
}

absl::StatusOr<uint64_t> S3::Size(const std::string& key) {
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Ask("HEAD", key, {}, {}));
  return answer.content_length;
}

absl::Status S3::Read(const std::string& key, uint64_t offset, std::span<std::byte> data) {
  if (data.empty()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const http::Answer answer, Ask("GET", key, {}, {}, {offset, data.size()}));
  if (answer.body.size() != data.size())
    return DataLoss("s3://{}/{}: {} bytes came of {} asked for at {}", bucket_, key, answer.body.size(), data.size(),
                    offset);
  std::memcpy(data.data(), answer.body.data(), data.size());
  return absl::OkStatus();
}

absl::Status S3::Remove(const std::string& key) {
  const absl::Status status = Ask("DELETE", key, {}, {}).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<S3::Listing> S3::List(const std::string& prefix, Depth depth) {
  Listing listing;
  Query query = {{"list-type", "2"}, {"prefix", prefix}};
  if (depth == Depth::kFolder) query["delimiter"] = "/";
  for (size_t page = 0; page < kMaxPages; ++page) {
    LS_ASSIGN_OR_RETURN(const http::Answer answer, Ask("GET", "", query, {}));
    if (XmlElements(answer.body, "IsTruncated").empty())
      return DataLoss("s3://{}/{}: what came is no listing of S3, or cut short", bucket_, prefix);
    for (const std::string& one : XmlElements(answer.body, "Contents")) listing.keys.push_back(XmlText(one, "Key"));
    for (const std::string& one : XmlElements(answer.body, "CommonPrefixes"))
      listing.folders.push_back(XmlText(one, "Prefix"));
    query["continuation-token"] = XmlText(answer.body, "NextContinuationToken");
    if (XmlText(answer.body, "IsTruncated") != "true" || query["continuation-token"].empty()) return listing;
  }
  return DataLoss("s3://{}/{}: more than {} pages of names", bucket_, prefix, kMaxPages);
}

}  // namespace lockstep::remote
