// Any bytes as an execution trace: it is refused, or two ranks that both have it are a job that can be explained.
#include "lockstep/base/check.h"
#include "lockstep/explain/explained.h"
#include "lockstep/trace/chakra_job.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string path = FuzzFile(data, size);
  const auto rank = trace::ReadChakra(path, 0);
  if (!rank.ok()) {
    LS_CHECK(Message(rank.status()).starts_with(path), "{}", Message(rank.status()));
    return 0;
  }
  std::vector<trace::ChakraRank> ranks(2, *rank);
  ranks[1].rank = ranks[0].rank + 1;
  auto job = trace::BuildChakraJob(std::move(ranks));
  if (!job.ok()) return 0;
  LS_CHECK(job->graph.Validate().ok(), "{}", Message(job->graph.Validate()));
  explain::Explained{std::move(*job)};
  return 0;
}
