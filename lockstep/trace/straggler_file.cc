#include "lockstep/trace/straggler_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_job.h"
#include "lockstep/trace/straggler_parquet.h"

namespace lockstep::trace {
namespace {

constexpr std::string_view kParquet = "PAR1";

absl::Status ReadRows(const std::string& path, StragglerSink& sink) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoError(errno, path);
  std::string begin(kParquet.size(), '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == kParquet ? ReadStragglerParquet(path, sink) : ReadStragglerCsv(path, sink);
}

}  // namespace

absl::StatusOr<TracedJob> ReadStragglerJob(const std::string& path, const StragglerMeta& meta,
                                           std::vector<StepRange> steps) {
  StragglerSink sink(meta, std::move(steps));
  LS_RETURN_IF_ERROR(ReadRows(path, sink));
  std::vector<Counter> counters = sink.Counters();
  auto job = BuildStragglerJob(sink.TakeRows(), meta);
  if (!job.ok()) return InvalidArgument("{}: {}", path, Message(job.status()));
  job->counters.insert(job->counters.begin(), counters.begin(), counters.end());
  return job;
}

}  // namespace lockstep::trace
