// Finds where a JSON value ends, without building anything. Lenient: control characters may stand in strings, and what
// is between quotes or brackets is not checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace lockstep::trace {

enum class Scanned : uint8_t { kWhole, kNeedsMore, kDamaged };

// Sets of characters, to look each one up at once.
using CharacterSet = std::array<bool, 256>;
constexpr CharacterSet SetOf(std::string_view characters) {
  CharacterSet set{};
  for (const char c : characters) set[static_cast<unsigned char>(c)] = true;
  return set;
}
inline constexpr CharacterSet kScalar = SetOf("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");

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

// What is searched for: as a set, and as bits of which of 16 characters are in it.
struct Quote {
  static constexpr CharacterSet kSet = SetOf("\"");
#ifdef __SSE2__
  static int Bits(__m128i block) { return _mm_movemask_epi8(_mm_cmpeq_epi8(block, _mm_set1_epi8('"'))); }
#endif
};
struct BracketOrQuote {
  static constexpr CharacterSet kSet = SetOf("{}[]\"");
#ifdef __SSE2__
  static int Bits(__m128i block) {
    const __m128i curly =
        _mm_or_si128(block, _mm_set1_epi8('{' ^ '['));  // '[' differs from '{' by that, and so do ']' and '}'
    const __m128i brackets =
        _mm_or_si128(_mm_cmpeq_epi8(curly, _mm_set1_epi8('{')), _mm_cmpeq_epi8(curly, _mm_set1_epi8('}')));
    return Quote::Bits(block) | _mm_movemask_epi8(brackets);
  }
#endif
};

// The first at or behind `at`; none: `end`.
template <typename Wanted>
inline const char* Find(const char* at, const char* end) {
#ifdef __SSE2__
  for (; end - at >= 16; at += 16)
    if (const int bits = Wanted::Bits(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); bits != 0)
      return at + __builtin_ctz(static_cast<unsigned>(bits));
#endif
  while (at < end && !Wanted::kSet[static_cast<unsigned char>(*at)]) ++at;
  return at;
}

// From behind the opening quote to behind the closing one.
inline Scanned SkipString(Cursor& cursor) {
  for (const char* from = cursor.at;;) {
    const char* quote = Find<Quote>(from, cursor.end);
    if (quote == cursor.end) return Scanned::kNeedsMore;
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
    cursor.at = Find<BracketOrQuote>(cursor.at, cursor.end);
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
