// Files of which parts are read: of this machine by pread, behind http:// or https:// by range requests. What is not
// there is an error with the path, never a bus error, and so is a file that has changed since it was opened: what was
// learnt of it then, such as where a label lies, is of other bytes. No file of this machine stays open.
//
//   Files files;
//   LS_ASSIGN_OR_RETURN(const DataFile file, files.Open("http://host/train-000.tar"));
//   LS_RETURN_IF_ERROR(file.Read(512, bytes));
#pragma once

#include <time.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/prepare/buffer.h"
#include "lockstep/prepare/http_file.h"

namespace lockstep::prepare {

inline constexpr uint64_t kMaxItemBytes = uint64_t{1} << 30;
// kResourceExhausted, with both numbers, if an item has more.
absl::Status CheckItemBytes(const std::string& name, uint64_t bytes);

// Thread-safe.
class DataFile {
 public:
  uint64_t size() const { return size_; }  // when it was opened
  const std::string& path() const { return path_; }
  // All of `bytes`, or an error.
  absl::Status Read(uint64_t offset, std::span<uint8_t> bytes) const;
  absl::Status Read(uint64_t offset, uint64_t count, Buffer& bytes) const {
    bytes.Resize(count);
    return Read(offset, {bytes.data(), bytes.size()});
  }

 private:
  friend class Files;
  std::string path_;
  uint64_t size_ = 0;
  timespec written_{};              // last, when it was opened; of this machine
  std::optional<HttpFile> remote_;  // none: of this machine
};

// Opens files; those of one server share its connections. Thread-safe.
class Files {
 public:
  explicit Files(Seconds patience = Seconds{20}) : patience_(patience) {}
  absl::StatusOr<DataFile> Open(const std::string& path);
  // A small one, whole.
  absl::StatusOr<std::string> ReadText(const std::string& path);
  // One behind HTTP whole, by one request; refused if it has more than kMaxItemBytes.
  absl::Status ReadRemote(const std::string& url, Buffer& bytes);
  // Reads of remote files, those under way too, fail from now on.
  void Stop();

 private:
  std::shared_ptr<HttpOrigin> OriginOf(const http::Url& url);

  const Seconds patience_;                                      // with a server that doesn't answer
  std::mutex mutex_;                                            // guards the origins
  std::map<std::string, std::shared_ptr<HttpOrigin>> origins_;  // shared with the files that are read from there
};

bool IsUrl(std::string_view path);
// The path without what follows "?" in a URL.
std::string_view WithoutQuery(std::string_view path);
// "name.tar" of any path or URL; ".tar".
std::string NameOf(std::string_view path);
std::string ExtensionOf(std::string_view path);

// Little parts that lie near each other, read ahead: of a remote file each read is a request.
class NearReader {
 public:
  explicit NearReader(const DataFile& file) : file_(file) {}
  absl::Status Read(uint64_t offset, std::span<uint8_t> bytes);
  const DataFile& file() const { return file_; }

 private:
  static constexpr uint64_t kAhead = 4096;
  const DataFile& file_;
  Buffer near_;
  uint64_t begin_ = 0;
};

// A file of this machine whole; refused if it has more than kMaxItemBytes.
absl::Status ReadWhole(const std::string& path, Buffer& bytes);

}  // namespace lockstep::prepare
