#include "lockstep/base/clean.h"

namespace lockstep {
namespace {

std::string Cleaned(std::string_view text, char stays) {
  const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool second_set = byte(i) == 0xC2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xA0;  // C1: U+0080 to U+009F
    const bool control = byte(i) < 0x20 || byte(i) == 0x7F || second_set;
    clean += control && text[i] != stays ? ' ' : text[i];
    i += second_set ? 1 : 0;
  }
  return clean;
}

}  // namespace

std::string Clean(std::string_view text) { return Cleaned(text, ' '); }
std::string CleanLines(std::string_view text) { return Cleaned(text, '\n'); }

}  // namespace lockstep
