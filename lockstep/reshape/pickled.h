// Values of the kinds that torch pickles, out of a graph in which they are only named.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/trace/pickle_graph.h"

namespace lockstep::reshape {

using trace::PickleGraph;
using trace::PickleId;
using trace::PickleValue;

// A text, or nothing.
std::optional<std::string_view> TextOf(const PickleGraph& graph, PickleId id);
// A number that is not negative, or nothing.
std::optional<uint64_t> SizeOf(const PickleGraph& graph, PickleId id);
// The parts of a list or tuple; of an object made of one list or tuple, such as torch.Size, those of that. Or nothing.
std::optional<std::vector<PickleId>> ItemsOf(const PickleGraph& graph, PickleId id);
// ... which are all numbers.
std::optional<std::vector<uint64_t>> SizesOf(const PickleGraph& graph, PickleId id);
// What an object has by that name in its state; kNoPickle: nothing.
PickleId AttributeOf(const PickleGraph& graph, PickleId object, std::string_view name);
// Whether the object's class, "module.name", ends with this name.
bool IsA(const PickleValue& value, std::string_view name);
// A class or a value by its name, such as a dtype; or nothing.
std::optional<std::string_view> ClassOf(const PickleGraph& graph, PickleId id);

}  // namespace lockstep::reshape
