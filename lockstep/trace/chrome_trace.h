// The events of a Chrome trace (JSON, plain or gzipped), one after the other, in constant memory whatever the size of
// the file. A document is an object with a member "traceEvents", or that array alone.
//
// Damage costs the event it is in: reading goes on at the next place that looks like the begin of an event, and what
// was lost is counted. Control characters within strings, which older profilers wrote, are taken as they are.
//
//   LS_ASSIGN_OR_RETURN(ChromeTraceReader reader, ChromeTraceReader::Open(path));
//   while (reader.Next()) Use(reader.event());
//   LS_RETURN_IF_ERROR(reader.status());
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"
#include "lockstep/trace/byte_source.h"

namespace lockstep::trace {

// A value as it stands in the file. Views into the reader's window: valid until Next().
class JsonValue {
 public:
  JsonValue() = default;
  explicit JsonValue(std::string_view raw) : raw_(raw) {}
  std::string_view raw() const { return raw_; }
  bool is_text() const { return raw_.starts_with('"'); }
  // Without quotes; escapes stay.
  std::string_view text() const { return is_text() ? raw_.substr(1, raw_.size() - 2) : raw_; }
  // An integer, also one in quotes; none if it is anything else or does not fit.
  std::optional<int64_t> integer() const;
  std::optional<uint64_t> unsigned_integer() const;

 private:
  std::string_view raw_;
};

struct ChromeEvent {
  char phase = 0;  // "ph": X complete, M metadata, s and f flow, i instant
  std::string_view name, category;
  JsonValue process, thread, id;
  int64_t begin_ns = 0, duration_ns = 0;  // "ts" and "dur", which are microseconds with up to three decimals
  std::string_view args;                  // an object, or empty
};

// Calls use(key, value) for each member of an object, until it is false. Damage ends it.
void ForEachMember(std::string_view object, const std::function<bool(std::string_view key, JsonValue value)>& use);

class ChromeTraceReader {
 public:
  // kInvalidArgument: no trace (not JSON, or JSON without events).
  static absl::StatusOr<ChromeTraceReader> Open(const std::string& path);

  bool Next();
  const ChromeEvent& event() const { return event_; }
  const absl::Status& status() const { return status_; }

  // Members of the document but for its events, {key: value}; those behind the events once all are read. A value of
  // more than a mebibyte is left out.
  const std::map<std::string, std::string, std::less<>>& members() const { return members_; }
  uint64_t events() const { return events_; }
  uint64_t damaged() const { return damaged_; }  // places at which events were lost

 private:
  enum class Where : uint8_t { kBegin, kMembers, kEvents, kEnd };

  explicit ChromeTraceReader(ByteSource bytes) : bytes_(std::move(bytes)) {}

  int Peek();
  bool ReadBegin();
  bool ReadMember();
  bool ReadEvent();
  bool FindNextEvent();
  bool Fail(const absl::Status& status);
  template <typename Scan>
  bool Take(const Scan& scan, std::string_view& taken);

  ByteSource bytes_;
  Where where_ = Where::kBegin;
  bool bare_array_ = false;
  size_t used_ = 0;  // bytes of the window that are the event handed out last
  ChromeEvent event_;
  std::string first_key_;  // of good events: how the next one begins
  std::map<std::string, std::string, std::less<>> members_;
  uint64_t events_ = 0, damaged_ = 0;
  absl::Status status_;
};

}  // namespace lockstep::trace
