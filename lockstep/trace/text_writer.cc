#include "lockstep/trace/text_writer.h"

#include <zlib.h>

#include <cerrno>

namespace lockstep::trace {

void TextWriter::Closer::operator()(void* file) const { gzclose_w(static_cast<gzFile>(file)); }

absl::StatusOr<TextWriter> TextWriter::Create(const std::string& path) {
  // The fastest level: what we write is written once and read once or never. T: as it is, without compression.
  gzFile file = gzopen(path.c_str(), path.ends_with(".gz") ? "wbe1" : "wbeT");
  if (file == nullptr) return ErrnoError(errno, path);
  return TextWriter(path, file);
}

void TextWriter::Flush() {
  const auto file = static_cast<gzFile>(file_.get());
  if (status_.ok() && !buffer_.empty() && gzwrite(file, buffer_.data(), static_cast<unsigned>(buffer_.size())) == 0)
    status_ = ErrnoError(errno, path_);
  buffer_.clear();
}

absl::Status WriteText(const std::string& path, std::string_view text) {
  LS_ASSIGN_OR_RETURN(TextWriter writer, TextWriter::Create(path));
  writer.Write("{}", text);
  return writer.Finish();
}

absl::Status TextWriter::Finish() {
  Flush();
  if (gzclose_w(static_cast<gzFile>(file_.release())) != Z_OK && status_.ok()) status_ = ErrnoError(errno, path_);
  return status_;
}

}  // namespace lockstep::trace
