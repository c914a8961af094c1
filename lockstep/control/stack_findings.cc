#include "lockstep/control/stack_findings.h"

#include <fmt/format.h>

#include <iterator>

#include "lockstep/cluster/layout.h"
#include "lockstep/detect/stack_groups.h"
#include "lockstep/trace/stacks_text.h"

namespace lockstep::control {

std::optional<incident::Finding> StackTexts::Find(const JobSpec& spec, const trace::CommLog& log) const {
  std::vector<trace::ProcessStack> stacks;
  int unreadable = 0;
  for (const auto& [node, text] : texts_) {
    absl::StatusOr<std::vector<trace::ProcessStack>> some = trace::ParseStacks(text, fmt::format("node {}", node));
    unreadable += !some.ok();
    if (!some.ok()) continue;
    stacks.insert(stacks.end(), std::make_move_iterator(some->begin()), std::make_move_iterator(some->end()));
  }
  detect::StackContext context;
  context.waits = detect::WaitsOf(log);
  if (const auto layout = cluster::LayoutFromJson(spec.layout); layout.ok() && layout->WorldSize() == spec.ranks)
    context.layout = *layout;
  absl::StatusOr<detect::StackVerdict> verdict = detect::AggregateStacks(stacks, context);
  if (!verdict.ok() || !verdict->finding) return std::nullopt;
  verdict->finding->evidence.push_back(
      fmt::format("by the stacks of {} processes, basis {}", stacks.size(), detect::StackBasisName(verdict->basis)));
  if (unreadable > 0)
    verdict->finding->evidence.push_back(fmt::format("what {} nodes sent is of another form", unreadable));
  return std::move(verdict->finding);
}

}  // namespace lockstep::control
