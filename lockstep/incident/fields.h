// Reads typed fields of one JSON object. Unknown fields are ignored, so a newer writer can be read. The first field
// that is missing or of the wrong type is remembered, later reads give defaults, and the caller asks once at the end.
// The object must outlive the reader.
//
//   Fields fields(json, "rank_exited");
//   RankExited exit{EpochId(fields.Unsigned("epoch")), RankId(fields.Int32("rank"))};
//   LS_RETURN_IF_ERROR(fields.status());         // "rank_exited: field rank is missing"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::incident {

class Fields {
 public:
  Fields(const Json& object, std::string_view what);

  int64_t Int(const char* name);
  int Int32(const char* name);
  uint64_t Unsigned(const char* name);
  double Number(const char* name);
  bool Flag(const char* name);
  std::string Text(const char* name);
  std::vector<std::string> Texts(const char* name);
  Nanos Time(const char* name) { return {Int(name)}; }
  // The object or array of that name; nullptr where it is missing or null.
  const Json* Optional(const char* name);
  // The same, but a missing one is an error, and an empty array stands in for it.
  const Json& Child(const char* name);

  void Fail(absl::Status status);
  const absl::Status& status() const { return status_; }

 private:
  template <typename Test>
  const Json* Find(const char* name, const char* expected, Test test);

  const Json& object_;
  std::string what_;
  absl::Status status_;
};

}  // namespace lockstep::incident
