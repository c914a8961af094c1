// Decimal numbers of text files, read as from_chars reads them, in a third of the time. For the numbers that traces are
// made of; whatever is unusual goes to from_chars.
#pragma once

#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>

namespace lockstep::trace {

// Both return what is behind the number, and `at` itself if there is none or it is out of range.
inline const char* ReadInteger(const char* at, const char* end, int64_t& value) {
  constexpr int kSafe = 18;  // digits that can't overflow
  const char* digit = at;
  const bool negative = digit != end && *digit == '-';
  if (negative) ++digit;
  const char* const first = digit;
  int64_t number = 0;
  for (; digit != end && *digit >= '0' && *digit <= '9' && digit - first < kSafe; ++digit)
    number = number * 10 + (*digit - '0');
  if (digit == first) return at;
  if (digit != end && *digit >= '0' && *digit <= '9') {
    const auto [rest, error] = std::from_chars(at, end, value);
    return error == std::errc() ? rest : at;
  }
  value = negative ? -number : number;
  return digit;
}

// A decimal of at most 15 digits is a quotient of two doubles that are exact, so its double is the nearest one. Of that
// the nearest float is the decimal's too, unless it lies right between two floats: then from_chars looks closer.
inline const char* ReadFloat(const char* at, const char* end, float& value) {
  constexpr int kExact = 15;
  constexpr std::array<double, kExact + 1> kTens = {1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                    1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  const auto closer = [&] {
    const auto [rest, error] = std::from_chars(at, end, value);
    return error == std::errc() ? rest : at;
  };
  const char* digit = at;
  const bool negative = digit != end && *digit == '-';
  if (negative) ++digit;
  int64_t number = 0;
  int digits = 0, behind_point = 0;
  bool point = false;
  for (; digit != end; ++digit) {
    if (*digit >= '0' && *digit <= '9') {
      number = number * 10 + (*digit - '0');
      behind_point += point ? 1 : 0;
      if (++digits > kExact) return closer();
    } else if (*digit == '.' && !point) {
      point = true;
    } else {
      break;
    }
  }
  // "1e-3", "nan", ".", and "1." are left to from_chars.
  if (digits == 0 || behind_point == digits || (point && behind_point == 0) || (digit != end && (*digit | 0x20) == 'e'))
    return closer();
  const double exact = static_cast<double>(number) / kTens[static_cast<size_t>(behind_point)];
  // Of the 29 bits that a float drops; 1e-15, the least number here, is far above the floats that have fewer bits.
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1, kHalf = uint64_t{1} << 28;
  if ((std::bit_cast<uint64_t>(exact) & kDropped) == kHalf) return closer();
  value = static_cast<float>(negative ? -exact : exact);
  return digit;
}

}  // namespace lockstep::trace
