#include "lockstep/base/ranges.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

template <typename Number>
std::string TextOf(std::span<const Number> numbers, const RangesForm& form) {
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < numbers.size(); ++ranges) {
    if (ranges == form.most) return fmt::format("{} and {} more", text, numbers.size() - i);
    size_t end = i + 1;
    while (end < numbers.size() && numbers[i] >= 0 && numbers[end] > numbers[i] && numbers[end] - 1 == numbers[end - 1])
      ++end;
    if (end - i < form.least) end = i + 1;
    if (!text.empty()) text += ", ";
    text += end == i + 1 ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace

std::string RangesText(std::span<const int64_t> numbers, const RangesForm& form) { return TextOf(numbers, form); }
std::string RangesText(std::span<const int> numbers, const RangesForm& form) { return TextOf(numbers, form); }

}  // namespace lockstep
