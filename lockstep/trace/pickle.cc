#include "lockstep/trace/pickle.h"

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lockstep/base/json_text.h"

namespace lockstep::trace {
namespace {

constexpr int kDeepest = 64;
constexpr uint64_t kLargestPerByte = 16;  // values
constexpr uint64_t kTextPerValue = 16;    // bytes of text that count as one more

// What a pickle says once and means often is written out as often: within measure.
class Writer {
 public:
  Writer(const PickleGraph& graph, uint64_t& left) : graph_(graph), left_(left) {}

  absl::StatusOr<Json> Value(PickleId id, int depth) {
    const PickleValue& value = graph_.At(id);
    if (depth > kDeepest) return InvalidArgument("values nested more than {} deep", kDeepest);
    const uint64_t cost = 1 + (value.kind == PickleKind::kText ? value.text.size() / kTextPerValue : 0);
    if (left_ < cost) return InvalidArgument("repeats itself beyond all measure");
    left_ -= cost;
    switch (value.kind) {
      case PickleKind::kNone:
        return Json();
      case PickleKind::kBool:
        return Json(value.integer != 0);
      case PickleKind::kInteger:
        return Json(value.integer);
      case PickleKind::kUnsigned:
        return Json(static_cast<uint64_t>(value.integer));
      case PickleKind::kReal:
        return Json(value.real);
      case PickleKind::kText:
        return Json(value.text);
      case PickleKind::kList:
      case PickleKind::kTuple:
        return List(value, depth);
      case PickleKind::kDict:
        return Dict(value, depth);
      default:
        return InvalidArgument("{} is no plain value", value.text.empty() ? "a persistent object" : value.text);
    }
  }

 private:
  absl::StatusOr<Json> List(const PickleValue& value, int depth) {
    Json list = Json::array();
    for (const PickleId part : value.parts) {
      LS_ASSIGN_OR_RETURN(Json item, Value(part, depth + 1));
      list.push_back(std::move(item));
    }
    return list;
  }

  absl::StatusOr<Json> Dict(const PickleValue& value, int depth) {
    Json dict = Json::object();
    auto& members = dict.get_ref<Json::object_t&>();  // which looks for each name among all before it
    std::map<std::string, size_t> place_of;
    for (size_t i = 0; i + 1 < value.parts.size(); i += 2) {
      LS_ASSIGN_OR_RETURN(const Json key, Value(value.parts[i], depth + 1));
      if (key.is_structured()) return InvalidArgument("a key that is no text");
      LS_ASSIGN_OR_RETURN(Json member, Value(value.parts[i + 1], depth + 1));
      const auto [known, anew] =
          place_of.emplace(key.is_string() ? key.get<std::string>() : OneLine(key), members.size());
      if (anew)
        members.emplace_back(known->first, std::move(member));
      else
        members.begin()[static_cast<std::ptrdiff_t>(known->second)].second = std::move(member);
    }
    return dict;
  }

  const PickleGraph& graph_;
  uint64_t& left_;
};

}  // namespace

uint64_t LargestOf(uint64_t bytes) { return kLargestPerByte * bytes + kDeepest; }

absl::StatusOr<Json> PlainValue(const PickleGraph& graph, PickleId id, uint64_t& left) {
  return Writer(graph, left).Value(id, 0);
}

absl::StatusOr<Json> ReadPickle(std::string_view bytes) {
  LS_ASSIGN_OR_RETURN(const PickleGraph graph, ReadPickleGraph(bytes));
  uint64_t left = LargestOf(bytes.size());
  return PlainValue(graph, graph.root, left);
}

}  // namespace lockstep::trace
