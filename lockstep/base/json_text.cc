#include "lockstep/base/json_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

bool HasANameTwice(const Json::object_t& object) {
  std::vector<std::string_view> names;
  names.reserve(object.size());
  for (const auto& [name, value] : object) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) != names.end();
}

// Of the values of a name the last counts, where the first stands.
Json::object_t WithNamesOnce(Json::object_t object) {
  Json::object_t once;
  std::map<std::string_view, size_t> place_of;
  for (auto& [name, value] : object)
    if (const auto [known, anew] = place_of.emplace(name, once.size()); anew)
      once.emplace_back(name, std::move(value));
    else
      once.begin()[static_cast<std::ptrdiff_t>(known->second)].second = std::move(value);
  return once;
}

// Makes a document of what nlohmann's parser meets, as its own builder does; but that looks for each name among all
// before it, so that the names of one packet would take minutes. And no deeper than a document may be.
class Document {
 public:
  absl::StatusOr<Json> Of(std::string_view text) {
    if (!Json::sax_parse(text, this)) return error_;
    return std::move(root_);
  }

  bool null() { return Put(nullptr); }
  bool boolean(bool value) { return Put(value); }
  bool number_integer(int64_t value) { return Put(value); }
  bool number_unsigned(uint64_t value) { return Put(value); }
  bool number_float(double value, const std::string& /*text*/) { return Put(value); }
  bool string(std::string& value) { return Put(std::move(value)); }
  bool binary(Json::binary_t& value) { return Put(std::move(value)); }  // in no text
  bool start_object(size_t /*size*/) { return Open(Json::value_t::object); }
  bool start_array(size_t /*size*/) { return Open(Json::value_t::array); }
  bool key(std::string& name) {
    name_ = std::move(name);
    return true;
  }
  bool end_object() {
    auto& object = open_.back()->get_ref<Json::object_t&>();
    if (HasANameTwice(object)) object = WithNamesOnce(std::move(object));
    return end_array();
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t byte, const std::string& /*token*/, const Json::exception& error) {
    constexpr int kOutOfRange = 406;
    error_ = error.id == kOutOfRange ? InvalidArgument("a number that no double holds")
                                     : InvalidArgument("byte {}: not JSON", byte);
    return false;
  }

 private:
  bool Put(Json value) {
    Place(std::move(value));
    return true;
  }
  Json& Place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object())
      return open_.back()->get_ref<Json::object_t&>().emplace_back(std::move(name_), std::move(value)).second;
    return open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
  }
  bool Open(Json::value_t kind) {
    if (open_.size() == kDeepestJson) {
      error_ = InvalidArgument("nested more than {} deep", kDeepestJson);
      return false;
    }
    open_.push_back(&Place(kind));  // stays where it is: nothing is added beside it before it is whole
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // each within the one before
  std::string name_;         // of what comes next
  absl::Status error_;
};

}  // namespace

Json ParseJson(std::string_view text) { return ReadJson(text).value_or(Json::value_t::discarded); }

absl::StatusOr<Json> ReadJson(std::string_view text) { return Document().Of(text); }

std::string OneLine(const Json& document) { return document.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace lockstep

namespace nlohmann {

void PrintTo(const ordered_json& document, std::ostream* out) { *out << lockstep::OneLine(document); }

}  // namespace nlohmann
