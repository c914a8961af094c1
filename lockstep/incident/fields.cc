#include "lockstep/incident/fields.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"

namespace lockstep::incident {
namespace {

const Json& EmptyArray() {
  static const Json empty = Json::array();
  return empty;
}

bool IsTextArray(const Json& value) {
  if (!value.is_array()) return false;
  for (const Json& item : value) {
    if (!item.is_string()) return false;
  }
  return true;
}

bool FitsInt64(const Json& value) {
  if (!value.is_number_unsigned()) return value.is_number_integer();
  return value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

bool FitsInt32(const Json& value) {
  if (!FitsInt64(value)) return false;
  const auto number = value.get<int64_t>();
  return number >= std::numeric_limits<int>::min() && number <= std::numeric_limits<int>::max();
}

}  // namespace

Fields::Fields(const Json& object, std::string_view what) : object_(object), what_(what) {
  if (!object.is_object()) Fail(InvalidArgument("{}: expected a JSON object, found {}", what_, object.type_name()));
}

void Fields::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

template <typename Test>
const Json* Fields::Find(const char* name, const char* expected, Test test) {
  if (!status_.ok()) return nullptr;
  const auto found = object_.find(name);
  if (found == object_.end()) {
    Fail(InvalidArgument("{}: field {} is missing", what_, name));
    return nullptr;
  }
  if (!test(*found)) {
    const std::string shown = found->is_number() ? OneLine(*found) : found->type_name();
    Fail(InvalidArgument("{}: field {} must be {}, found {}", what_, name, expected, shown));
    return nullptr;
  }
  return &*found;
}

int64_t Fields::Int(const char* name) {
  const Json* found = Find(name, "an integer", FitsInt64);
  return found ? found->get<int64_t>() : 0;
}

int Fields::Int32(const char* name) {
  const Json* found = Find(name, "an integer of 32 bits", FitsInt32);
  return found ? found->get<int>() : 0;
}

uint64_t Fields::Unsigned(const char* name) {
  const Json* found = Find(name, "a whole number from 0 to 18446744073709551615",
                           [](const Json& value) { return value.is_number_unsigned(); });
  return found ? found->get<uint64_t>() : 0;
}

double Fields::Number(const char* name) {
  const Json* found = Find(name, "a number", [](const Json& value) { return value.is_number(); });
  return found ? found->get<double>() : 0;
}

bool Fields::Flag(const char* name) {
  const Json* found = Find(name, "true or false", [](const Json& value) { return value.is_boolean(); });
  return found && found->get<bool>();
}

std::string Fields::Text(const char* name) {
  const Json* found = Find(name, "a string", [](const Json& value) { return value.is_string(); });
  return found ? found->get<std::string>() : "";
}

std::vector<std::string> Fields::Texts(const char* name) {
  const Json* found = Find(name, "an array of strings", IsTextArray);
  return found ? found->get<std::vector<std::string>>() : std::vector<std::string>();
}

const Json* Fields::Optional(const char* name) {
  if (!status_.ok()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& Fields::Child(const char* name) {
  const Json* found = Find(name, "an object or an array", [](const Json& value) { return value.is_structured(); });
  return found ? *found : EmptyArray();
}

}  // namespace lockstep::incident
