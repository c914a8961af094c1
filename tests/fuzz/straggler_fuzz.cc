// Any bytes as a straggler trace: it is refused with its place, or it is a job that can be explained.
#include "lockstep/base/check.h"
#include "lockstep/explain/explained.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_job.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  trace::StragglerMeta meta;
  meta.dp = meta.pp = 2;
  meta.world_size = 4;
  trace::StragglerSink sink(meta, {});
  const std::string path = FuzzFile(data, size);
  if (const absl::Status read = trace::ReadStragglerCsv(path, sink); !read.ok()) {
    LS_CHECK(Message(read).starts_with(path), "{}", Message(read));
    return 0;
  }
  auto job = trace::BuildStragglerJob(sink.TakeRows(), meta);
  if (!job.ok()) return 0;
  LS_CHECK(job->graph.Validate().ok(), "{}", Message(job->graph.Validate()));
  explain::Explained{std::move(*job)};
  return 0;
}
