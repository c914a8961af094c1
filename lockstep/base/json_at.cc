#include "lockstep/base/json_at.h"

#include <nlohmann/json.hpp>

namespace lockstep {

const Json& At(const Json& object, std::string_view key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

int64_t IntegerAt(const Json& object, std::string_view key, int64_t otherwise) {
  const Json& value = At(object, key);
  return value.is_number_integer() ? value.get<int64_t>() : otherwise;
}

bool BooleanAt(const Json& object, std::string_view key, bool otherwise) {
  const Json& value = At(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

std::optional<int> RankFrom(const Json& value) {
  constexpr int64_t kMostRanks = 1 << 20;
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() >= kMostRanks) return std::nullopt;
  const auto rank = value.get<int64_t>();
  return rank >= 0 && rank < kMostRanks ? std::optional(static_cast<int>(rank)) : std::nullopt;
}

std::string TextAt(const Json& object, std::string_view key) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace lockstep
