// Finds where a JSON value ends, without building anything. Lenient: control characters may stand in strings, and what
// is between quotes or brackets is not checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace lockstep::trace {

enum class Scanned : uint8_t { kWhole, kNeedsMore, kDamaged };

// Sets of characters, to look each one up at once.
using CharacterSet = std::array<bool, 256>;
constexpr CharacterSet SetOf(std::string_view characters) {
  CharacterSet set{};
  for (const char c : characters) set[static_cast<unsigned char>(c)] = true;
  return set;
}
inline constexpr CharacterSet kBrackets = SetOf("{}[]\""),
                              kScalar = SetOf("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");

// Where a scan stands in a text.
struct Cursor {
  const char* at;
  const char* end;

  size_t left() const { return static_cast<size_t>(end - at); }
  bool Is(const CharacterSet& set) const { return set[static_cast<unsigned char>(*at)]; }
  void SkipSpace() {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  }
};

// From behind the opening quote to behind the closing one.
inline Scanned SkipString(Cursor& cursor) {
  for (const char* from = cursor.at;;) {
    const auto* quote = static_cast<const char*>(std::memchr(from, '"', static_cast<size_t>(cursor.end - from)));
    if (quote == nullptr) return Scanned::kNeedsMore;
    const char* before = quote;
    while (before > cursor.at && before[-1] == '\\') --before;
    if ((quote - before) % 2 == 0) {
      cursor.at = quote + 1;
      return Scanned::kWhole;
    }
    from = quote + 1;
  }
}

// From an opening bracket to behind the one that closes it.
inline Scanned SkipNested(Cursor& cursor) {
  int depth = 0;
  for (;;) {
    while (cursor.at < cursor.end && !cursor.Is(kBrackets)) ++cursor.at;
    if (cursor.at == cursor.end) return Scanned::kNeedsMore;
    switch (*cursor.at++) {
      case '{':
      case '[':
        ++depth;
        break;
      case '}':
      case ']':
        if (--depth == 0) return Scanned::kWhole;
        break;
      case '"':
        if (SkipString(cursor) == Scanned::kNeedsMore) return Scanned::kNeedsMore;
        break;
      default:
        break;
    }
  }
}

// A number, true, false or null.
inline Scanned SkipScalar(Cursor& cursor) {
  const char* begin = cursor.at;
  while (cursor.at < cursor.end && cursor.Is(kScalar)) ++cursor.at;
  if (cursor.at == cursor.end) return Scanned::kNeedsMore;
  return cursor.at == begin ? Scanned::kDamaged : Scanned::kWhole;
}

// Any value, from its first character to behind its last.
inline Scanned SkipValue(Cursor& cursor) {
  if (cursor.at == cursor.end) return Scanned::kNeedsMore;
  if (*cursor.at == '{' || *cursor.at == '[') return SkipNested(cursor);
  if (*cursor.at != '"') return SkipScalar(cursor);
  ++cursor.at;
  return SkipString(cursor);
}

// A member of an object, and the comma behind it. `last`: the object ended instead.
struct Member {
  std::string_view key;
  std::string_view value;
  bool last = false;
};
inline Scanned NextMember(Cursor& cursor, Member& member) {
  cursor.SkipSpace();
  if (cursor.at == cursor.end) return Scanned::kNeedsMore;
  if (*cursor.at == '}') {
    ++cursor.at;
    member.last = true;
    return Scanned::kWhole;
  }
  if (*cursor.at++ != '"') return Scanned::kDamaged;
  const char* key = cursor.at;
  if (SkipString(cursor) != Scanned::kWhole) return Scanned::kNeedsMore;
  member.key = {key, static_cast<size_t>(cursor.at - key - 1)};
  cursor.SkipSpace();
  if (cursor.at == cursor.end) return Scanned::kNeedsMore;
  if (*cursor.at++ != ':') return Scanned::kDamaged;
  cursor.SkipSpace();
  const char* value = cursor.at;
  if (const Scanned scanned = SkipValue(cursor); scanned != Scanned::kWhole) return scanned;
  member.value = {value, static_cast<size_t>(cursor.at - value)};
  cursor.SkipSpace();
  if (cursor.at == cursor.end) return Scanned::kNeedsMore;
  if (*cursor.at == ',') return ++cursor.at, Scanned::kWhole;
  return *cursor.at == '}' ? Scanned::kWhole : Scanned::kDamaged;
}

}  // namespace lockstep::trace
