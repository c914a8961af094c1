#include "lockstep/trace/decimal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <type_traits>

namespace lockstep::trace {
namespace {

// Against from_chars: the same number with the same sign, and the same rest; `at` itself where that fails.
template <typename Number, typename Read>
void ExpectSame(const std::string& text, Read read) {
  Number expected{}, value{};
  const char *begin = text.data(), *end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, expected);
  const char* const behind = read(begin, end, value);
  ASSERT_EQ(behind - begin, error == std::errc() ? rest - begin : 0) << text;
  if (error != std::errc()) return;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isnan(expected) || !std::isnan(value)) {
      ASSERT_EQ(value, expected) << text;
    }
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << text;
  } else {
    ASSERT_EQ(value, expected) << text;
  }
}
void ExpectSameFloat(const std::string& text) { ExpectSame<float>(text, ReadFloat); }
void ExpectSameInteger(const std::string& text) { ExpectSame<int64_t>(text, ReadInteger); }

TEST(Decimal, UnusualNumbers) {
  for (const char* text : {"",
                           "-",
                           "+1",
                           ".",
                           "-.",
                           ".5",
                           "5.",
                           "0",
                           "-0",
                           "0.0",
                           "-0.0",
                           "1e5",
                           "1E-3",
                           "1e",
                           "1.5e+2x",
                           "nan",
                           "inf",
                           "-infinity",
                           "1.5.6",
                           "1,2",
                           "0x10",
                           "1.5f",
                           "--1",
                           " 1",
                           "9223372036854775807",
                           "9223372036854775808",
                           "-9223372036854775808",
                           "-9223372036854775809",
                           "000000000000000000000000000012",
                           "123456789012345678901234567890",
                           "0.00000000000000000000000000000000000000000000012",
                           "3.4e39",
                           "16777217",
                           "16777219",
                           "0.1000000000000000",
                           "999999999999999",
                           "9999999999999999"}) {
    ExpectSameFloat(text);
    ExpectSameInteger(text);
  }
}

TEST(Decimal, RandomNumbers) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float any = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const float usual = static_cast<float>(random() % 1'000'000) / 3000.0F;
    for (const float value : {any, usual}) {
      ExpectSameFloat(fmt::format("{}", value));
      if (std::isfinite(value)) ExpectSameFloat(fmt::format("{:.9f},", static_cast<double>(value)));
    }
    const auto mantissa = static_cast<int64_t>(random() >> (random() % 64U));
    ExpectSameInteger(fmt::format("{}", mantissa));
    std::string text = fmt::format("{}", mantissa);
    ExpectSameFloat(text.insert(text.size() - random() % text.size(), "."));
  }
}

// Decimals of 15 digits as close as possible to the middle between two floats.
TEST(Decimal, BetweenTwoFloats) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 100'000; ++i) {
    const float below = static_cast<float>(1 + random() % 1000) + static_cast<float>(random() % 1000) / 1024.0F;
    const double middle = (static_cast<double>(below) + static_cast<double>(std::nextafter(below, 1e9F))) / 2;
    for (const int digits : {8, 10, 11, 12}) ExpectSameFloat(fmt::format("{:.{}f}", middle, digits));
  }
}

}  // namespace
}  // namespace lockstep::trace
