#include "lockstep/trace/straggler_file.h"

#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_job.h"
#include "lockstep/trace/straggler_parquet.h"

namespace lockstep::trace {
namespace {

constexpr std::string_view kParquet = "PAR1";

absl::Status ReadRows(const std::string& path, StragglerSink& sink, size_t threads) {
  return FirstBytes(path, kParquet.size()) == kParquet ? ReadStragglerParquet(path, sink, threads)
                                                       : ReadStragglerCsv(path, sink);
}

// What may be why rows make no job.
std::string UnknownText(const std::vector<Counter>& counters) {
  for (const Counter& counter : counters)
    if (counter.name.starts_with(kUnknownOpType))
      return fmt::format("; {} rows are left out, of unknown op type \"{}\"", counter.count,
                         counter.name.substr(kUnknownOpType.size()));
  return "";
}

}  // namespace

absl::StatusOr<TracedJob> ReadStragglerJob(const std::string& path, const StragglerMeta& meta,
                                           std::vector<StepRange> steps, size_t threads) {
  StragglerSink sink(meta, steps);
  LS_RETURN_IF_ERROR(ReadRows(path, sink, threads));
  std::vector<Counter> counters = sink.Counters();
  auto job = BuildStragglerJob(sink.TakeRows(), meta, threads);
  if (absl::IsAlreadyExists(job.status())) {  // read it again, to say where
    StragglerSink strict(meta, std::move(steps));
    strict.RefuseTwice();
    LS_RETURN_IF_ERROR(ReadRows(path, strict, 1));
  }
  if (!job.ok()) return InvalidArgument("{}: {}{}", path, Message(job.status()), UnknownText(counters));
  job->counters.insert(job->counters.begin(), counters.begin(), counters.end());
  return job;
}

}  // namespace lockstep::trace
