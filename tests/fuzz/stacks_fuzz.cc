// Any bytes as the stacks of an incident, behind a line with the job's layout: each is refused with what was expected,
// or the job can be judged; frames of one key have one normal frame.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/detect/stack_groups.h"
#include "lockstep/detect/stack_report.h"
#include "lockstep/trace/stacks_text.h"
#include "tests/fuzz/fuzz_file.h"

namespace {

void CheckKeys(const std::vector<lockstep::trace::ProcessStack>& stacks) {
  std::map<std::string, std::string> normal_of;
  std::string key;
  for (const auto& stack : stacks) {
    for (const auto* frames : {&stack.python, &stack.native}) {
      for (const std::string& frame : *frames) {
        lockstep::detect::MakeFrameKey(frame, key);
        const std::string normal = lockstep::detect::NormalFrame(frame);
        const std::string& known = normal_of.try_emplace(key, normal).first->second;
        LS_CHECK(known == normal, "{} and {}, of one key", known, normal);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view line = all.substr(0, all.find('\n'));
  const size_t begin = std::min(line.size() + 1, size);
  const std::string path = FuzzFile(data + begin, size - begin);
  detect::StackContext context;
  // Each rank of a layout is looked at: a small job is enough.
  constexpr int kMostRanks = 4096;
  if (auto layout = cluster::ParseLayout(line); layout.ok() && layout->WorldSize() <= kMostRanks)
    context.layout = *std::move(layout);
  const auto stacks = trace::ReadStackFiles({path});
  if (!stacks.ok()) {
    LS_CHECK(Message(stacks.status()).starts_with(path), "{}", Message(stacks.status()));
    return 0;
  }
  CheckKeys(*stacks);
  for (const detect::Lines lines : {detect::Lines::kDrop, detect::Lines::kKeep}) {
    context.lines = lines;
    const auto verdict = detect::AggregateStacks(*stacks, context);
    if (!verdict.ok()) {
      LS_CHECK(context.layout.has_value(), "{}", Message(verdict.status()));
      continue;
    }
    const Json report = detect::StackReport(*verdict);
    LS_CHECK(!RenderJson(report).empty() && !RenderText(report).empty(), "{}", path);
  }
  return 0;
}
