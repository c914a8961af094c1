#include "lockstep/term/text.h"

#include <algorithm>
#include <cmath>

namespace lockstep::term {
namespace {

constexpr char kEscape = '\033';

size_t EndOfEscape(const std::string& line, size_t at) { return std::min(line.find('m', at), line.size() - 1); }
bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::string Fit(const std::string& line, size_t width) {
  std::string fitted;
  size_t columns = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == kEscape) {
      const size_t end = EndOfEscape(line, i);
      fitted.append(line, i, end - i + 1);
      i = end;
      continue;
    }
    if (!Continues(line[i]) && ++columns > width) return fitted + kPlain;
    fitted += line[i];
  }
  return fitted;
}

std::string Colourless(const std::string& line) {
  std::string plain;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == kEscape) {
      i = EndOfEscape(line, i);
    } else {
      plain += line[i];
    }
  }
  return plain;
}

std::string Strip(double value, double largest, int width) {
  if (!std::isfinite(value) || !(largest > 0)) return "";
  const int filled = std::clamp(static_cast<int>(std::lround(value / largest * width)), 0, std::max(width, 0));
  std::string strip;
  for (int i = 0; i < filled; ++i) strip += "▇";
  return strip;
}

}  // namespace lockstep::term
