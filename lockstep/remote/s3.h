// The few operations of S3's protocol that checkpoints need, each signed, its body hashed, and tried again with growing
// pauses while the store is busy (5xx, 408, 429) or out of reach. Errors name bucket and key, and what the store said.
// Thread rule: one thread at a time. Cost: what is written or read at once lies in memory whole; of an answer that is
// longer than it may be, 8 MiB or what was asked for.
//
//   LS_ASSIGN_OR_RETURN(S3 s3, S3::Open("bucket", S3SettingsFromEnvironment(), clock, go_on));
//   LS_RETURN_IF_ERROR(s3.Put("prefix/key", bytes));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/disk.h"
#include "lockstep/http/client.h"
#include "lockstep/remote/sigv4.h"

namespace lockstep::remote {

struct S3Settings {
  std::string endpoint;  // http://HOST[:PORT]; empty: AWS's own, by bucket and region
  std::string region;
  Keys keys;
};
// AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.
S3Settings S3SettingsFromEnvironment();

class S3 {
 public:
  // `go_on` is asked in pauses: a no ends them.
  static absl::StatusOr<S3> Open(const std::string& bucket, const S3Settings& settings, const Clock& clock,
                                 checkpoint::GoOn go_on);

  absl::Status Put(const std::string& key, std::span<const std::byte> data);
  // Of large objects, in parts of at least 5 MiB but for the last.
  absl::StatusOr<std::string> BeginParts(const std::string& key);
  absl::StatusOr<std::string> PutPart(const std::string& key, const std::string& upload, size_t number,
                                      std::span<const std::byte> data);
  absl::Status EndParts(const std::string& key, const std::string& upload, const std::vector<std::string>& etags);
  absl::Status AbortParts(const std::string& key, const std::string& upload);
  struct Upload {
    std::string key, id;
  };
  // That were begun and not ended, below a prefix.
  absl::StatusOr<std::vector<Upload>> Uploads(const std::string& prefix);

  // NotFound where there is none.
  absl::StatusOr<uint64_t> Size(const std::string& key);
  absl::Status Read(const std::string& key, uint64_t offset, std::span<std::byte> data);
  absl::Status Remove(const std::string& key);  // one that is not there is as good
  struct Listing {
    std::vector<std::string> keys, folders;  // folders end with "/"
  };
  // What begins with `prefix`, up to the next "/" or, of kAll, however deep. Never NotFound: nothing there is an empty
  // listing.
  enum class Depth { kFolder, kAll };
  absl::StatusOr<Listing> List(const std::string& prefix, Depth depth = Depth::kFolder);

 private:
  using Query = std::map<std::string, std::string>;
  struct Range {
    uint64_t offset = 0;
    size_t size = 0;  // 0: all of it
  };
  S3(std::string bucket, const S3Settings& settings, const Clock& clock, checkpoint::GoOn go_on);
  absl::StatusOr<http::Answer> Ask(const std::string& method, const std::string& key, const Query& query,
                                   std::span<const std::byte> body, const Range& range = {0, 0});
  absl::StatusOr<http::Answer> TryOnce(const std::string& method, const std::string& key, const Query& query,
                                       std::span<const std::byte> body, const Range& range);
  absl::Status Refused(const std::string& method, const std::string& key, const http::Answer& answer) const;
  bool Pause(Seconds length) const;

  std::string bucket_, host_, base_;  // base_: the path before a key
  S3Settings settings_;
  const Clock* clock_;
  checkpoint::GoOn go_on_;
  std::unique_ptr<http::Client> http_;
};

}  // namespace lockstep::remote
