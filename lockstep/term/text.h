// Text for terminals: ANSI colours and UTF-8, nothing else, so that it works over ssh in any terminal. A column is a
// character: wide ones are counted as one. Pure.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/clean.h"
#include "lockstep/base/status.h"

namespace lockstep::term {

inline constexpr char kPlain[] = "\033[0m";
inline constexpr char kBold[] = "\033[1m";
inline constexpr char kDim[] = "\033[2m";
inline constexpr char kRed[] = "\033[31m";
inline constexpr char kGreen[] = "\033[32m";
inline constexpr char kYellow[] = "\033[33m";
inline constexpr char kCyan[] = "\033[36m";

// Cuts to `width` columns; escapes take no column, a UTF-8 sequence takes one.
std::string Fit(const std::string& line, size_t width);
using lockstep::Clean;
// Without colours, for files.
std::string Colourless(const std::string& line);
// A strip of `width` columns for the largest value, and of less for less; empty for what is not known.
std::string Strip(double value, double largest, int width);
// "-" for what is not finite.
inline std::string Known(double value, fmt::format_string<double&> format) {
  return value - value == 0 ? fmt::format(format, value) : std::string("-");
}

}  // namespace lockstep::term
