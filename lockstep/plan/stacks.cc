#include "lockstep/plan/stacks.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

void ReadStack(cluster::TableReader& in, Stack& stack) {
  using cluster::Sign;
  in.Require({"name", "kind"});
  in.Text("name", stack.name);
  in.Text("kind", stack.kind);
  in.Texts("frameworks", stack.frameworks);
  in.Boolean("unfused", stack.memory.unfused);
  in.Boolean("eager", stack.memory.eager);
  in.Number("gradient_bytes", Sign::kPositive, stack.memory.gradient_bytes);
  in.Number("adam_bytes", Sign::kPositive, stack.memory.adam_bytes);
  in.Number("later_gradient_bytes", Sign::kNotNegative, stack.later_gradient_bytes);
  in.Number("logit_bytes", Sign::kPositive, stack.memory.logit_bytes);
  in.Number("selective_kept", Sign::kPositive, stack.memory.selective_kept);
  in.Number("stage_buffers", Sign::kNotNegative, stack.memory.stage_buffers);
  in.Number("gathered_bytes", Sign::kNotNegative, stack.memory.gathered_bytes);
  ReadRateFields(in, Scope::kStack, stack.habits);
}

}  // namespace

const Stack* Stacks::Find(std::string_view name) const {
  const auto found = std::ranges::find(all_, name, &Stack::name);
  return found == all_.end() ? nullptr : &*found;
}

const Stack& Stacks::OfFramework(std::string_view framework, StackHints hints) const {
  const std::string name = absl::AsciiStrToLower(std::string(framework));
  const auto begins = [&](const std::string& part) { return name.starts_with(part); };
  const auto has = [&](const std::string& part) { return name.find(part) != std::string::npos; };
  const Stack* best = Longest(hints, begins);
  if (best == nullptr) best = Longest(hints, has);
  if (best != nullptr) return *best;
  const auto alike = std::ranges::find_if(all_, [&](const Stack& stack) {
    return stack.memory.unfused == hints.unfused && stack.memory.eager == (hints.sharded && !hints.unfused);
  });
  return alike == all_.end() ? all_.front() : *alike;
}

const Stack* Stacks::Longest(StackHints hints, const std::function<bool(const std::string&)>& fits) const {
  const Stack* best = nullptr;
  std::pair<size_t, bool> most = {0, false};  // length of the name, whether attention agrees
  for (const Stack& stack : all_) {
    for (const std::string& part : stack.frameworks) {
      const std::pair<size_t, bool> one = {part.size(), stack.memory.unfused == hints.unfused};
      if (one <= most || !fits(absl::AsciiStrToLower(part))) continue;
      best = &stack;
      most = one;
    }
  }
  return best;
}

Rates WithHabits(Rates of_hardware, const Stack& stack) {
  const std::span<const RateField> fields = RateFields();
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].scope != Scope::kStack) continue;
    of_hardware.*fields[f].member = stack.habits.*fields[f].member;
    of_hardware.unsure[f] = stack.habits.unsure[f];
  }
  return of_hardware;
}

absl::StatusOr<Stacks> ReadStacks(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  cluster::TableReader in(root, path);
  std::vector<Stack> all;
  in.Require({"stack"});
  in.Tables("stack", [&](cluster::TableReader& inner) { ReadStack(inner, all.emplace_back()); });
  LS_RETURN_IF_ERROR(in.Finish());
  if (all.empty()) return InvalidArgument("{}: it has no [[stack]]", path);
  return Stacks(std::move(all));
}

std::string StacksText(const Stacks& stacks) {
  std::string text;
  for (const Stack& stack : stacks.all()) {
    const StackMemory& memory = stack.memory;
    text += fmt::format("\n[[stack]]\nname = {}\nkind = {}\n", cluster::TomlText(stack.name),
                        cluster::TomlText(stack.kind));
    std::vector<std::string> quoted;
    for (const std::string& start : stack.frameworks) quoted.push_back(cluster::TomlText(start));
    text += fmt::format("frameworks = [{}]\nunfused = {}\neager = {}\n", fmt::join(quoted, ", "), memory.unfused,
                        memory.eager);
    text += fmt::format(
        "gradient_bytes = {}\nlater_gradient_bytes = {}\nadam_bytes = {}\nlogit_bytes = {}\nselective_kept = {}\n",
        memory.gradient_bytes, stack.later_gradient_bytes, memory.adam_bytes, memory.logit_bytes,
        memory.selective_kept);
    text += fmt::format("stage_buffers = {}\ngathered_bytes = {}\n", memory.stage_buffers, memory.gathered_bytes);
    text += RatesText(stack.habits, Scope::kStack);
  }
  return text;
}

}  // namespace lockstep::plan
