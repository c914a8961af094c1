// Any bytes as the kernel's log: records, printed lines, what a judge makes of them, and the report of a log's file.
#include <nlohmann/json.hpp>

#include "lockstep/base/check.h"
#include "lockstep/inspect/kernel_log_reader.h"
#include "lockstep/inspect/report.h"
#include "lockstep/inspect/tree.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto record = inspect::ParseKernelRecord(text)) {
    LS_CHECK(record->text.size() < text.size() && record->at.value >= 0, "{}", record->text);
  }
  static const inspect::Settings settings;
  inspect::LogJudge judge(settings);
  for (const std::string_view line : inspect::Lines(text)) {
    const std::string_view own = inspect::KernelText(line);
    LS_CHECK(own.size() <= line.size(), "{}", line);
    const auto event = inspect::ClassifyKernelLine(own);
    LS_CHECK(!event || (!event->subject.empty() && settings[event->item].source == inspect::Source::kKernelLog), "{}",
             line);
    judge.Take(own, Nanos{0});
  }
  inspect::Reading reading;
  judge.Judge(Nanos{0}, reading);
  // Bytes that are no UTF-8 come from logs too.
  LS_CHECK(!RenderJson(inspect::LogReport(inspect::FindInLog(text))).empty(), "{}", size);
  return 0;
}
