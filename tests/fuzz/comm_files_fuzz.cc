// Any bytes as what ranks told of their communication (a Flight Recorder's pickle or JSON, a status of RAS as JSON or
// text, lines of NCCL's Inspector): it is refused with its name, or it can be diagnosed.
#include <nlohmann/json.hpp>

#include "lockstep/base/check.h"
#include "lockstep/detect/diagnosis.h"
#include "lockstep/trace/comm_files.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string path = FuzzFile(data, size);
  const auto log = trace::ReadCommFiles({path});
  if (!log.ok()) {
    LS_CHECK(Message(log.status()).starts_with(path), "{}", Message(log.status()));
    return 0;
  }
  const Json report = detect::DiagnosisReport(detect::DiagnoseCommunication(*log), *log);
  LS_CHECK(!RenderJson(report).empty() && !RenderText(report).empty(), "{}", path);
  return 0;
}
