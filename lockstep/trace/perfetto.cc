#include "lockstep/trace/perfetto.h"

#include <cmath>
#include <utility>

namespace lockstep::trace {
std::string JsonText(std::string_view text) {
  constexpr unsigned char kFirstPrintable = 0x20;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < kFirstPrintable) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

absl::StatusOr<TimelineWriter> TimelineWriter::Create(const std::string& path) {
  LS_ASSIGN_OR_RETURN(TextWriter text, TextWriter::Create(path));
  text.Write("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  return TimelineWriter(std::move(text));
}

const char* TimelineWriter::Separator() { return std::exchange(first_, false) ? "" : ",\n"; }

void TimelineWriter::NameProcess(int64_t process, std::string_view name) {
  text_.Write(R"({}{{"name":"process_name","ph":"M","pid":{},"args":{{"name":{}}}}})", Separator(), process,
              JsonText(name));
  text_.Write(R"({0}{{"name":"process_sort_index","ph":"M","pid":{1},"args":{{"sort_index":{1}}}}})", Separator(),
              process);
}

void TimelineWriter::NameThread(int64_t process, int64_t thread, std::string_view name) {
  text_.Write(R"({}{{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":{}}}}})", Separator(), process,
              thread, JsonText(name));
  text_.Write(R"({0}{{"name":"thread_sort_index","ph":"M","pid":{1},"tid":{2},"args":{{"sort_index":{2}}}}})",
              Separator(), process, thread);
}

void TimelineWriter::AddSlice(const Slice& slice) {
  // Both ends are rounded, not the duration, or a slice would reach into the one behind it.
  const auto rounded = [](double us) { return std::round(us * 1e3) / 1e3; };
  const double begin = rounded(slice.begin_us), end = rounded(slice.begin_us + slice.duration_us);
  text_.Write(R"({0}{{"name":{1},"cat":{1},"ph":"X","pid":{2},"tid":{3},"ts":{4:.3f},"dur":{5:.3f},"args":{{{6}}}}})",
              Separator(), JsonText(slice.name), slice.process, slice.thread, begin, end - begin, slice.args);
}

absl::Status TimelineWriter::Finish() {
  text_.Write("]}}\n");
  return text_.Finish();
}

}  // namespace lockstep::trace
