#include "lockstep/trace/line_reader.h"

namespace lockstep::trace {
namespace {

constexpr size_t kLongest = 64 << 20;  // a line that is longer belongs to no file of ours

}  // namespace

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  LS_ASSIGN_OR_RETURN(ByteSource bytes, ByteSource::Open(path, kLongest));
  return LineReader(std::move(bytes));
}

bool LineReader::Next() {
  bytes_.Consume(std::exchange(used_, 0));
  size_t stop = bytes_.window().find('\n');
  while (stop == std::string_view::npos) {
    const size_t searched = bytes_.window().size();
    if (!bytes_.Grow()) break;
    stop = bytes_.window().find('\n', searched);
  }
  if (stop == std::string_view::npos) {
    if (bytes_.is_full()) {
      status_ = InvalidArgument("{}:{}: the line is longer than {} bytes", bytes_.path(), number_ + 1, kLongest);
      return false;
    }
    if (!bytes_.status().ok()) {
      status_ = InvalidArgument("{}: damaged {}: {}", bytes_.path(),
                                number_ == 0 ? "in line 1" : fmt::format("behind line {}", number_),
                                Message(bytes_.status()));
      return false;
    }
    if (bytes_.window().empty()) return false;
  }
  line_ = bytes_.window().substr(0, stop);
  used_ = stop == std::string_view::npos ? line_.size() : stop + 1;
  if (line_.ends_with('\r')) line_.remove_suffix(1);
  return ++number_, true;
}

}  // namespace lockstep::trace
