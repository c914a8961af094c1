#include "lockstep/trace/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/number.h"
#include "lockstep/trace/json_scan.h"

namespace lockstep::trace {
namespace {

// An event that is longer is damage: a quote that nobody closed.
constexpr size_t kLongestEvent = 16 << 20;
constexpr size_t kLongestMember = 1 << 20;
constexpr int64_t kLatest = 2'200'000'000'000'000;  // us since 1970: in 2039; differences of such times fit in 64 bits

constexpr int64_t kPerMicro = 1000;

// Microseconds that are written otherwise than by digits and a point: "1.5e6".
std::optional<int64_t> RoundedNanoseconds(std::string_view text) {
  const std::optional<double> micros = WholeNumber<double>(text);
  if (!micros || !(std::abs(*micros) < static_cast<double>(kLatest))) return std::nullopt;
  return std::llround(*micros * kPerMicro);
}

// Microseconds as nanoseconds, without a double between: an epoch in nanoseconds has more digits than that holds.
std::optional<int64_t> Nanoseconds(std::string_view text) {
  const size_t point = text.find('.');
  const std::optional<int64_t> whole = WholeNumber<int64_t>(text.substr(0, point));
  if (!whole) return RoundedNanoseconds(text);
  if (std::abs(*whole) > kLatest) return std::nullopt;
  int64_t fraction = 0, unit = kPerMicro;
  if (point != std::string_view::npos)
    for (const char digit : text.substr(point + 1)) {
      if (digit < '0' || digit > '9') return RoundedNanoseconds(text);
      if (unit == 1) continue;
      unit /= 10;
      fraction += unit * (digit - '0');
    }
  return *whole * kPerMicro + (text.starts_with('-') ? -fraction : fraction);
}

// False: it is no event.
bool Interpret(const Member& member, ChromeEvent& event) {
  const std::string_view key = member.key;
  const JsonValue value(member.value);
  if (key == "ph") {
    event.phase = value.text().empty() ? '\0' : value.text()[0];
  } else if (key == "name") {
    event.name = value.text();
  } else if (key == "cat") {
    event.category = value.text();
  } else if (key == "pid") {
    event.process = value;
  } else if (key == "tid") {
    event.thread = value;
  } else if (key == "id") {
    event.id = value;
  } else if (key == "args") {
    if (member.value.starts_with('{')) event.args = member.value;
  } else if (key == "ts" || key == "dur") {
    const std::optional<int64_t> nanos = Nanoseconds(value.text());
    if (!nanos) return false;
    (key == "ts" ? event.begin_ns : event.duration_ns) = *nanos;
  }
  return true;
}

// An event from behind its opening bracket.
Scanned ScanEvent(Cursor& cursor, ChromeEvent& event, std::string_view& first_key) {
  event = {};
  first_key = {};
  for (Member member;;) {
    if (const Scanned scanned = NextMember(cursor, member); scanned != Scanned::kWhole) return scanned;
    if (member.last) return event.phase == 0 ? Scanned::kDamaged : Scanned::kWhole;
    if (first_key.empty()) first_key = member.key;
    if (!Interpret(member, event)) return Scanned::kDamaged;
  }
}

}  // namespace

std::optional<int64_t> JsonValue::integer() const { return WholeNumber<int64_t>(text()); }
std::optional<uint64_t> JsonValue::unsigned_integer() const { return WholeNumber<uint64_t>(text()); }

void ForEachMember(std::string_view object, const std::function<bool(std::string_view, JsonValue)>& use) {
  if (!object.starts_with('{')) return;
  Cursor cursor{object.data() + 1, object.data() + object.size()};
  for (Member member; NextMember(cursor, member) == Scanned::kWhole && !member.last;)
    if (!use(member.key, JsonValue(member.value))) return;
}

absl::StatusOr<ChromeTraceReader> ChromeTraceReader::Open(const std::string& path) {
  LS_ASSIGN_OR_RETURN(ByteSource bytes, ByteSource::Open(path, kLongestEvent));
  ChromeTraceReader reader(std::move(bytes));
  if (!reader.ReadBegin()) return reader.status_;
  return reader;
}

bool ChromeTraceReader::Fail(const absl::Status& status) {
  status_ = InvalidArgument("{}: {}", bytes_.path(), Message(status));
  where_ = Where::kEnd;
  return false;
}

// The next character that is no space; -1: none.
int ChromeTraceReader::Peek() {
  for (;;) {
    const std::string_view window = bytes_.window();
    const size_t found = window.find_first_not_of(" \n\t\r");
    bytes_.Consume(std::min(found, window.size()));
    if (found != std::string_view::npos) return static_cast<unsigned char>(window[found]);
    if (!bytes_.Grow()) return -1;
  }
}

// Scans from the begin of the window, with more of the file until it is enough. False: damage, or the file ended.
template <typename Scan>
bool ChromeTraceReader::Take(const Scan& scan, std::string_view& taken) {
  for (;;) {
    const std::string_view window = bytes_.window();
    Cursor cursor{window.data(), window.data() + window.size()};
    const Scanned scanned = scan(cursor);
    taken = window.substr(0, static_cast<size_t>(cursor.at - window.data()));
    if (scanned != Scanned::kNeedsMore) return scanned == Scanned::kWhole;
    if (!bytes_.Grow()) return false;
  }
}

bool ChromeTraceReader::ReadBegin() {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (Peek() >= 0 && bytes_.window().starts_with(kByteOrderMark)) bytes_.Consume(kByteOrderMark.size());
  const int first = Peek();
  if (!bytes_.status().ok()) return Fail(bytes_.status());
  if (first != '{' && first != '[')
    return Fail(InvalidArgument("no JSON: expected a Chrome trace, an object or an array"));
  bytes_.Consume(1);
  bare_array_ = first == '[';
  where_ = bare_array_ ? Where::kEvents : Where::kMembers;
  return true;
}

// A member of the document: its events begin, or it is kept.
bool ChromeTraceReader::ReadMember() {
  const int next = Peek();
  if (next == '}' || next < 0) {
    where_ = Where::kEnd;
    if (!bytes_.status().ok()) return Fail(bytes_.status());
    if (next < 0) ++damaged_;  // the document was cut off
    return false;
  }
  std::string_view taken;
  std::string key;
  const bool has_key = Take(
      [&](Cursor& cursor) {
        if (*cursor.at == ',') ++cursor.at;
        cursor.SkipSpace();
        if (cursor.at == cursor.end) return Scanned::kNeedsMore;
        if (*cursor.at++ != '"') return Scanned::kDamaged;
        const char* begin = cursor.at;
        if (SkipString(cursor) != Scanned::kWhole) return Scanned::kNeedsMore;
        key.assign(begin, cursor.at - 1);
        cursor.SkipSpace();
        if (cursor.at == cursor.end) return Scanned::kNeedsMore;
        return *cursor.at++ == ':' ? Scanned::kWhole : Scanned::kDamaged;
      },
      taken);
  if (!has_key) {
    where_ = Where::kEnd;
    if (!bytes_.status().ok()) return Fail(bytes_.status());
    if (events_ == 0) return Fail(InvalidArgument("the document is damaged before its events"));
    return ++damaged_, false;
  }
  bytes_.Consume(taken.size());
  if (key == "traceEvents" && Peek() == '[') {
    bytes_.Consume(1);
    where_ = Where::kEvents;
    return true;
  }
  Peek();
  if (!Take([](Cursor& cursor) { return SkipValue(cursor); }, taken)) {
    where_ = Where::kEnd;
    if (!bytes_.status().ok()) return Fail(bytes_.status());
    return ++damaged_, false;
  }
  if (taken.size() <= kLongestMember) members_[key] = std::string(taken);
  bytes_.Consume(taken.size());
  return true;
}

bool ChromeTraceReader::ReadEvent() {
  for (;;) {
    int next = Peek();
    if (next == ',') {
      bytes_.Consume(1);
      next = Peek();
    }
    if (next == ']') {
      bytes_.Consume(1);
      where_ = bare_array_ ? Where::kEnd : Where::kMembers;
      return false;
    }
    std::string_view taken, first_key;
    const bool whole = next == '{' && Take(
                                          [&](Cursor& cursor) {
                                            ++cursor.at;
                                            return ScanEvent(cursor, event_, first_key);
                                          },
                                          taken);
    if (whole) {
      if (events_++ == 0) first_key_ = first_key;
      used_ = taken.size();
      return true;
    }
    if (!bytes_.status().ok()) return Fail(bytes_.status());
    ++damaged_;
    if (next < 0 || !FindNextEvent()) {
      where_ = Where::kEnd;
      if (!bytes_.status().ok()) return Fail(bytes_.status());
      return false;
    }
  }
}

// To the next bracket that is followed by the key with which events begin in this file.
bool ChromeTraceReader::FindNextEvent() {
  const std::string key = "\"" + (first_key_.empty() ? std::string("ph") : first_key_) + "\"";
  bytes_.Consume(std::min<size_t>(1, bytes_.window().size()));
  for (size_t from = 0;;) {
    const std::string_view window = bytes_.window();
    const size_t found = window.find(key, from);
    if (found == std::string_view::npos) {
      // A key may stand across the end of the window, and its bracket before it.
      constexpr size_t kKept = 4096;
      if (window.size() > 2 * kKept) bytes_.Consume(window.size() - kKept);
      if (!bytes_.Grow()) return false;
      from = 0;
      continue;
    }
    const size_t bracket = found == 0 ? std::string_view::npos : window.find_last_not_of(" \n\t\r", found - 1);
    if (bracket != std::string_view::npos && window[bracket] == '{') return bytes_.Consume(bracket), true;
    from = found + 1;
  }
}

bool ChromeTraceReader::Next() {
  bytes_.Consume(std::exchange(used_, 0));
  while (where_ != Where::kEnd) {
    if (where_ == Where::kEvents && ReadEvent()) return true;
    if (where_ == Where::kMembers) ReadMember();
  }
  return false;
}

}  // namespace lockstep::trace
