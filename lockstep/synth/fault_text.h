// How faults are written on a command line: "kind:key=value,key=value".
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/number.h"
#include "lockstep/base/status.h"

namespace lockstep::synth {

// A kind of fault, and which keys say something about it: "dp, stage, factor".
struct FaultForm {
  std::string_view name, keys;
};

// Views into the text.
struct FaultText {
  std::string_view kind;
  std::vector<std::pair<std::string_view, std::string_view>> values;  // by key
};

inline bool HasKey(std::string_view keys, std::string_view key) {
  while (!keys.empty()) {
    const std::string_view one = keys.substr(0, keys.find(','));
    if (one == key) return true;
    keys.remove_prefix(std::min(one.size() + 2, keys.size()));
  }
  return false;
}

inline absl::StatusOr<FaultText> SplitFault(std::string_view text) {
  const size_t colon = text.find(':');
  FaultText fault{text.substr(0, colon), {}};
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const size_t equal = one.find('=');
    if (equal == std::string_view::npos) return InvalidArgument("fault {}: \"{}\" is no key=value", fault.kind, one);
    const std::string_view key = one.substr(0, equal);
    for (const auto& [known, value] : fault.values)
      if (known == key) return InvalidArgument("fault {}: {} is given twice", fault.kind, key);
    fault.values.emplace_back(key, one.substr(equal + 1));
  }
  return fault;
}

// The whole text is that number.
template <typename Number>
bool ParseNumber(std::string_view text, Number& value) {
  const std::optional<Number> number = WholeNumber<Number>(text);
  if (!number || !std::isfinite(static_cast<double>(*number))) return false;
  value = *number;
  return true;
}

// A fault of the kinds `forms`, in the order of their enumeration; `set` takes a key of its form and the value, and
// answers whether it can be that.
template <typename Fault, typename Forms, typename Set>
absl::StatusOr<Fault> ParseFaultText(std::string_view text, const Forms& forms, Set set) {
  LS_ASSIGN_OR_RETURN(const FaultText parts, SplitFault(text));
  const auto form = std::ranges::find(forms, parts.kind, &FaultForm::name);
  if (form == forms.end()) {
    std::vector<std::string_view> names;
    for (const FaultForm& one : forms) names.push_back(one.name);
    return InvalidArgument("fault \"{}\": expected one of {}", parts.kind, fmt::join(names, ", "));
  }
  Fault fault;
  fault.kind = static_cast<decltype(fault.kind)>(form - forms.begin());
  for (const auto& [key, value] : parts.values) {
    if (!HasKey(form->keys, key))
      return InvalidArgument("fault {}: \"{}\" says nothing about it; expected {}", parts.kind, key, form->keys);
    if (!set(fault, key, value)) return InvalidArgument("fault {}: {} can't be \"{}\"", parts.kind, key, value);
  }
  return fault;
}

}  // namespace lockstep::synth
