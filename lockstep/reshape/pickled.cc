#include "lockstep/reshape/pickled.h"

namespace lockstep::reshape {

using trace::kNoPickle;
using trace::PickleKind;

std::optional<std::string_view> TextOf(const PickleGraph& graph, PickleId id) {
  if (id == kNoPickle || graph.At(id).kind != PickleKind::kText) return std::nullopt;
  return graph.At(id).text;
}

std::optional<uint64_t> SizeOf(const PickleGraph& graph, PickleId id) {
  if (id == kNoPickle || graph.At(id).kind != PickleKind::kInteger || graph.At(id).integer < 0) return std::nullopt;
  return static_cast<uint64_t>(graph.At(id).integer);
}

std::optional<std::vector<PickleId>> ItemsOf(const PickleGraph& graph, PickleId id) {
  if (id == kNoPickle) return std::nullopt;
  const auto is_list = [&](PickleId one) {
    return graph.At(one).kind == PickleKind::kList || graph.At(one).kind == PickleKind::kTuple;
  };
  if (is_list(id)) return graph.At(id).parts;
  const PickleValue& object = graph.At(id);
  if (object.kind != PickleKind::kObject) return std::nullopt;
  const std::vector<PickleId>& args = graph.At(object.args).parts;
  if (args.size() != 1 || !is_list(args.front())) return std::nullopt;
  return graph.At(args.front()).parts;
}

std::optional<std::vector<uint64_t>> SizesOf(const PickleGraph& graph, PickleId id) {
  const auto items = ItemsOf(graph, id);
  if (!items) return std::nullopt;
  std::vector<uint64_t> sizes;
  for (const PickleId item : *items) {
    const auto size = SizeOf(graph, item);
    if (!size) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

PickleId AttributeOf(const PickleGraph& graph, PickleId object, std::string_view name) {
  if (object == kNoPickle || graph.At(object).kind != PickleKind::kObject) return kNoPickle;
  const PickleId state = graph.At(object).state;
  if (state == kNoPickle || graph.At(state).kind != PickleKind::kDict) return kNoPickle;
  const std::vector<PickleId>& parts = graph.At(state).parts;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) {
    if (TextOf(graph, parts[i]) == name) return parts[i + 1];
  }
  return kNoPickle;
}

bool IsA(const PickleValue& value, std::string_view name) {
  return value.kind == PickleKind::kObject && value.text.size() > name.size() && value.text.ends_with(name) &&
         value.text[value.text.size() - name.size() - 1] == '.';
}

std::optional<std::string_view> ClassOf(const PickleGraph& graph, PickleId id) {
  if (id == kNoPickle || graph.At(id).kind != PickleKind::kClass) return std::nullopt;
  return graph.At(id).text;
}

}  // namespace lockstep::reshape
