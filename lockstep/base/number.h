// Numbers in texts, as std::from_chars reads them: no blanks and no plus in front.
//
//   WholeNumber<int>("12")   // 12; nothing of "12x", "", or what no int holds
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

namespace lockstep {

// The number that `text` begins with, which is taken off; nothing, and `text` as it was: it begins with none.
template <typename Number>
std::optional<Number> TakeNumber(std::string_view& text, int radix = 10) {
  Number number{};
  std::from_chars_result read{};
  if constexpr (std::is_floating_point_v<Number>) {
    read = std::from_chars(text.data(), text.data() + text.size(), number);
  } else {
    read = std::from_chars(text.data(), text.data() + text.size(), number, radix);
  }
  if (read.ec != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  return number;
}

// All of the text.
template <typename Number>
std::optional<Number> WholeNumber(std::string_view text, int radix = 10) {
  const std::optional<Number> number = TakeNumber<Number>(text, radix);
  return text.empty() ? number : std::nullopt;
}

}  // namespace lockstep
