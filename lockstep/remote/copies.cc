#include "lockstep/remote/copies.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>

#include "lockstep/remote/object_disk.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::remote {
namespace {

constexpr std::string_view kS3 = "s3://", kFile = "file://";

struct Where {
  std::string bucket;  // empty: a path
  std::string rest;    // the path, or the prefix without slashes at its ends
};

absl::StatusOr<Where> Parse(const std::string& url) {
  if (url.starts_with(kFile)) {
    const std::string path = url.substr(kFile.size());
    if (!path.starts_with('/')) return InvalidArgument("{}: expected file:///PATH, with an absolute path", url);
    return Where{"", path};
  }
  if (!url.starts_with(kS3)) {
    if (IsUrl(url) || url.empty())
      return InvalidArgument("\"{}\": expected s3://BUCKET/PREFIX, file:///PATH or a path", url);
    return Where{"", std::filesystem::absolute(url).lexically_normal().string()};
  }
  const size_t slash = std::min(url.find('/', kS3.size()), url.size());
  Where where{url.substr(kS3.size(), slash - kS3.size()), url.substr(std::min(slash + 1, url.size()))};
  while (where.rest.ends_with('/')) where.rest.pop_back();
  if (where.bucket.empty() || where.rest.starts_with('/') || where.rest.find("//") != std::string::npos)
    return InvalidArgument("{}: expected s3://BUCKET/PREFIX", url);
  return where;
}

absl::StatusOr<S3> OpenS3(const Where& where, const Clock& clock, checkpoint::GoOn go_on) {
  return S3::Open(where.bucket, S3SettingsFromEnvironment(), clock, std::move(go_on));
}

// What a run locks that keeps its checkpoints in the directory.
absl::Status CheckNoRun(const std::string& directory) {
  const absl::Status free = store::WriterLock::CheckFree(directory + "/.lock");
  if (free.ok()) return free;
  return FailedPrecondition("{}: a run keeps its own checkpoints there: name another directory ({})", directory,
                            Message(free));
}

}  // namespace

bool IsUrl(const std::string& text) { return text.find("://") != std::string::npos; }

absl::Status CheckUrl(const std::string& url, const Clock& clock) {
  LS_ASSIGN_OR_RETURN(const Where where, Parse(url));
  return where.bucket.empty() ? absl::OkStatus() : OpenS3(where, clock, [] { return true; }).status();
}

absl::StatusOr<Copies> OpenCopies(const std::string& url, const Clock& clock, checkpoint::GoOn go_on) {
  LS_ASSIGN_OR_RETURN(const Where where, Parse(url));
  if (where.bucket.empty()) return Copies{checkpoint::PosixDisk(), where.rest};
  LS_ASSIGN_OR_RETURN(S3 s3, OpenS3(where, clock, std::move(go_on)));
  const std::string prefix = where.rest.empty() ? "" : where.rest + "/";
  std::string root = fmt::format("s3://{}{}{}", where.bucket, where.rest.empty() ? "" : "/", where.rest);
  auto disk = std::make_unique<ObjectDisk>(std::move(s3), root, prefix);
  return Copies{std::move(disk), std::move(root)};
}

// The directory itself is locked: what lies in it is the user's.
absl::StatusOr<Fd> Prepare(const Copies& copies) {
  if (IsUrl(copies.directory)) return Fd();
  std::error_code error;
  std::filesystem::create_directories(copies.directory, error);
  if (error) return InvalidArgument("{}: {}", copies.directory, error.message());
  LS_RETURN_IF_ERROR(CheckNoRun(copies.directory));
  Fd directory(open(copies.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid() && flock(directory.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return FailedPrecondition("{}: another process is writing there; wait for its end, or name another directory",
                              copies.directory);
  return directory;
}

// Asked last before it is published.
absl::Status CopyTo(const Copies& copies, checkpoint::Store& there, const checkpoint::Store& here,
                    const checkpoint::Point& point, const checkpoint::GoOn& go_on, checkpoint::Store::Here how) {
  if (IsUrl(copies.directory)) return there.CopyFrom(here, point, go_on, how);
  absl::Status no_run;
  const auto goes_on = [&] { return go_on() && (no_run = CheckNoRun(copies.directory)).ok(); };
  const absl::Status copied = there.CopyFrom(here, point, goes_on, how);
  return no_run.ok() ? copied : no_run;
}

absl::StatusOr<checkpoint::Point> FetchInto(checkpoint::Store& here, const checkpoint::Store& there,
                                            const checkpoint::GoOn& go_on,
                                            const std::function<void(const std::string&)>& passed_over) {
  LS_ASSIGN_OR_RETURN(const store::WriterLock lock, store::WriterLock::Take(here.directory() + "/.lock"));
  (void)here.ClearLeftovers();  // what stays the run to come tells
  LS_ASSIGN_OR_RETURN(const std::vector<checkpoint::Point> points, there.List());
  for (const checkpoint::Point& point : points) {
    const absl::Status status = here.CopyFrom(there, point, go_on, checkpoint::Store::Here::kBySums);
    if (status.ok()) return point;
    if (!checkpoint::MeansDamage(status)) return status;  // another one would fail likewise
    passed_over(Message(status));
  }
  return NotFound("{} holds no checkpoint that is whole", there.directory());
}

}  // namespace lockstep::remote
