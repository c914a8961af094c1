// Writes a timeline that Perfetto and chrome://tracing load: Chrome's JSON events, gzipped. Processes hold threads,
// threads hold slices, which on one thread must not overlap.
//
//   LS_ASSIGN_OR_RETURN(TimelineWriter timeline, TimelineWriter::Create("timeline.json.gz"));
//   timeline.NameThread(0, 8, "PP rank 1, compute");
//   timeline.AddSlice({.process = 0, .thread = 8, .name = "forward-compute", .begin_us = 0, .duration_us = 12.5});
//   LS_RETURN_IF_ERROR(timeline.Finish());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::trace {

struct Slice {
  int64_t process = 0, thread = 0;
  std::string_view name;
  double begin_us = 0, duration_us = 0;
  std::string_view args;  // the members of a JSON object: "\"step\":16"; may be empty
};

class TimelineWriter {
 public:
  static absl::StatusOr<TimelineWriter> Create(const std::string& path);

  void NameProcess(int64_t process, std::string_view name);
  void NameThread(int64_t process, int64_t thread,
                  std::string_view name);  // threads stand in the order of their numbers
  void AddSlice(const Slice& slice);
  absl::Status Finish();

 private:
  explicit TimelineWriter(TextWriter text) : text_(std::move(text)) {}
  const char* Separator();

  TextWriter text_;
  bool first_ = true;
};

// "text" as JSON has it, with quotes.
std::string JsonText(std::string_view text);

}  // namespace lockstep::trace
