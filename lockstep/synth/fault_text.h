// How faults are written on a command line: "kind:key=value,key=value".
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::synth {

// Views into the text.
struct FaultText {
  std::string_view kind;
  std::vector<std::pair<std::string_view, std::string_view>> values;  // by key
};

// `keys`: those there are, for the error of a part that is no key=value.
inline absl::StatusOr<FaultText> SplitFault(std::string_view text, std::string_view keys) {
  const size_t colon = text.find(':');
  FaultText fault{text.substr(0, colon), {}};
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const size_t equal = one.find('=');
    if (equal == std::string_view::npos)
      return InvalidArgument("fault {}: \"{}\" is no key=value; keys are {}", fault.kind, one, keys);
    fault.values.emplace_back(one.substr(0, equal), one.substr(equal + 1));
  }
  return fault;
}

// The whole text is that number.
template <typename Number>
bool ParseNumber(std::string_view text, Number& value) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && rest == text.data() + text.size();
}

// A fault of the kinds `names`, in the order of their enumeration; `set` takes a key and its value, both text.
template <typename Fault, typename Names, typename Set>
absl::StatusOr<Fault> ParseFaultText(std::string_view text, const Names& names, std::string_view keys, Set set) {
  LS_ASSIGN_OR_RETURN(const FaultText parts, SplitFault(text, keys));
  const auto found = std::find(names.begin(), names.end(), parts.kind);
  if (found == names.end())
    return InvalidArgument("fault \"{}\": expected one of {}", parts.kind, fmt::join(names, ", "));
  Fault fault;
  fault.kind = static_cast<decltype(fault.kind)>(found - names.begin());
  for (const auto& [key, value] : parts.values)
    if (const absl::Status status = set(fault, key, value); !status.ok())
      return InvalidArgument("fault {}: {}", parts.kind, Message(status));
  return fault;
}

}  // namespace lockstep::synth
