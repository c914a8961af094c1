// Software stacks: what a framework does with memory, which names tables have for it, and its habits, that a fit
// found. From presets/plan/stacks.toml.
//
//   LS_ASSIGN_OR_RETURN(const Stacks stacks, ReadStacks(path));
//   const Rates rates = WithHabits(of_hardware, stacks.OfFramework("NeMo/Megatron-Core", {}));
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct Stack {
  std::string name;
  std::string kind;                     // stacks of one kind are expected to have similar habits
  std::vector<std::string> frameworks;  // what names in tables begin with
  StackMemory memory;
  // Of a parameter's gradient, beside memory.gradient_bytes, in versions whose pipelines count the embedding as a
  // layer.
  double later_gradient_bytes = 0;
  Rates habits;  // of Scope::kStack alone
};

// What a table says of a run whose framework nobody knows, or several stacks have the name of.
struct StackHints {
  bool unfused = false, sharded = false;
};

class Stacks {
 public:
  explicit Stacks(std::vector<Stack> all) : all_(std::move(all)) {}
  const Stack* Find(std::string_view name) const;
  // That with the longest name that the framework begins with, or else has in it; of one name that whose attention
  // agrees.
  const Stack& OfFramework(std::string_view framework, StackHints hints) const;
  const std::vector<Stack>& all() const { return all_; }

 private:
  const Stack* Longest(StackHints hints, const std::function<bool(const std::string&)>& fits) const;

  std::vector<Stack> all_;
};

Rates WithHabits(Rates of_hardware, const Stack& stack);

absl::StatusOr<Stacks> ReadStacks(const std::string& path);
std::string StacksText(const Stacks& stacks);  // TOML

}  // namespace lockstep::plan
