// Any bytes as the metadata of a straggler trace: sizes that agree, or an error that names the file.
#include "lockstep/base/check.h"
#include "lockstep/trace/straggler_meta.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string path = FuzzFile(data, size);
  const auto meta = trace::ReadStragglerMeta(path);
  LS_CHECK(meta.ok() || Message(meta.status()).starts_with(path), "{}", Message(meta.status()));
  if (meta.ok()) LS_CHECK(meta->dp > 0 && meta->pp > 0 && meta->world_size > 0, "sizes of {}", meta->world_size);
  return 0;
}
