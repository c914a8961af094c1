// A Python pickle as a graph of values in which objects are only named: nothing is looked up and nothing runs, so a
// pickle can't do harm. Which classes may be named at all is the reader's to say; any other is refused by its name.
// Values refer to each other by number, so what a pickle repeats is there once, and the graph has no more values than
// the pickle has bytes. It may be cyclic: whoever walks it counts its depth. Text lies in the pickle, which must stay.
//
//   LS_ASSIGN_OR_RETURN(const PickleGraph graph, ReadPickleGraph(bytes, {.classes = kClasses}));
//   const PickleValue& size = graph.At(graph.root);             // torch.Size((4, 8))
//   if (size.kind == PickleKind::kObject && size.text == "torch.Size") Use(graph.At(size.args));
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::trace {

enum class PickleKind : uint8_t {
  kNone,
  kBool,        // integer: 0 or 1
  kInteger,     // integer
  kUnsigned,    // integer: the bits of one above 2^63 - 1
  kReal,        // real
  kText,        // text; also bytes
  kList,        // parts
  kTuple,       // parts
  kDict,        // parts: key, value, key, value, ...
  kClass,       // text: "torch.float32"; whatever a module has by a name
  kObject,      // text: its class; args, parts: what was put into it since, as into a list or a dict; state
  kPersistent,  // args: what names it; where it lies is a matter of the file
  kUnreadable,  // text: what it is; parts, state: what it is made of
};

using PickleId = uint32_t;
inline constexpr PickleId kNoPickle = ~PickleId{0};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  int64_t integer = 0;
  double real = 0;
  std::string_view text = {};
  std::vector<PickleId> parts = {};
  PickleId args = kNoPickle, state = kNoPickle;
};

struct PickleGraph {
  std::vector<PickleValue> values;
  PickleId root = 0;
  std::set<std::string, std::less<>> foreign;  // names of classes that were not allowed, as text of values
  const PickleValue& At(PickleId id) const { return values[id]; }
};

// What a pickle may name: "module.name" each, kept by the caller. None: plain values only.
struct PickleNames {
  std::span<const std::string_view> classes = {};
  bool persistent = false;
  bool foreign = false;  // any other is a kClass too, by its name, and so is what it makes; sets and integers beyond 64
                         // bits are kUnreadable. But for the root, which must be a value that is allowed.
  std::string_view expected = "plain values";  // for the sentence that refuses another
};

// kInvalidArgument: what stands at which byte, and what was expected; or cut off.
absl::StatusOr<PickleGraph> ReadPickleGraph(std::string_view bytes, const PickleNames& names = {});

}  // namespace lockstep::trace
