#include "lockstep/trace/pickle_graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"

namespace lockstep::trace {
namespace {

constexpr PickleId kMark = kNoPickle;  // on the stack: the begin of a group

// What makes objects; pickletools' names.
const char* ObjectOpcode(unsigned char code) {
  switch (code) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    case 0x97:
      return "NEXT_BUFFER";
    case 0x98:
      return "READONLY_BUFFER";
    case 0x8f:
      return "EMPTY_SET";
    case 0x91:
      return "FROZENSET";
    default:
      return nullptr;
  }
}

std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text.substr(0, 64)) printable += c >= ' ' && c <= '~' ? c : '?';
  return printable;
}

class Machine {
 public:
  Machine(std::string_view bytes, const PickleNames& names) : bytes_(bytes), names_(names) {}

  absl::StatusOr<PickleGraph> Run() {
    while (at_ < bytes_.size()) {
      begin_ = at_;
      code_ = static_cast<unsigned char>(bytes_[at_++]);
      if (code_ == '.') {
        if (stack_.size() != 1 || stack_.front() == kMark) return Fail("the end, expected one value before it");
        graph_.root = stack_.front();
        return std::move(graph_);
      }
      LS_RETURN_IF_ERROR(Step());
    }
    return InvalidArgument("cut off after {} bytes", bytes_.size());
  }

 private:
  absl::Status Fail(std::string_view what) const { return InvalidArgument("byte {}: {}", begin_, what); }
  // `name`: of what it would make, where it says so.
  absl::Status Refuse(const std::string& name = "") const {
    return Fail(fmt::format("{}{}{} is refused: it makes objects by running code; expected {}", ObjectOpcode(code_),
                            name.empty() ? "" : " ", name, names_.expected));
  }

  using Action = absl::Status (*)(Machine&);
  using Kind = PickleKind;
  // By opcode; null: none that is known.
  static std::array<Action, 256> Actions() {
    std::array<Action, 256> actions{};
    const auto set = [&actions](std::initializer_list<unsigned char> codes, Action action) {
      for (const unsigned char code : codes) actions[code] = action;
    };
    set({0x80}, [](Machine& self) { return self.Take(1).status(); });  // PROTO
    set({0x95}, [](Machine& self) { return self.Take(8).status(); });  // FRAME
    set({'('}, [](Machine& self) { return self.Mark(); });
    set({'N'}, [](Machine& self) { return self.Push({.kind = Kind::kNone}); });
    set({0x88}, [](Machine& self) { return self.Push({.kind = Kind::kBool, .integer = 1}); });
    set({0x89}, [](Machine& self) { return self.Push({.kind = Kind::kBool}); });
    set({'}'}, [](Machine& self) { return self.Push({.kind = Kind::kDict}); });
    set({']'}, [](Machine& self) { return self.Push({.kind = Kind::kList}); });
    set({')'}, [](Machine& self) { return self.Push({.kind = Kind::kTuple}); });
    set({'J'}, [](Machine& self) { return self.PushInteger<int32_t>(); });
    set({'K'}, [](Machine& self) { return self.PushInteger<uint8_t>(); });
    set({'M'}, [](Machine& self) { return self.PushInteger<uint16_t>(); });
    set({0x8a}, [](Machine& self) { return self.PushLong(1); });
    set({0x8b}, [](Machine& self) { return self.PushLong(4); });
    set({'G'}, [](Machine& self) { return self.PushReal(); });
    set({'I', 'L', 'F'}, [](Machine& self) { return self.PushNumberLine(); });
    set({0x8c, 'U', 'C'}, [](Machine& self) { return self.PushText(1); });  // of a length of so many bytes
    set({'X', 'T', 'B'}, [](Machine& self) { return self.PushText(4); });
    set({0x8d, 0x8e}, [](Machine& self) { return self.PushText(8); });
    set({'q'}, [](Machine& self) { return self.Put(1); });
    set({'r'}, [](Machine& self) { return self.Put(4); });
    set({0x94}, [](Machine& self) { return self.Keep(self.memo_.size()); });  // MEMOIZE
    set({'h'}, [](Machine& self) { return self.Get(1); });
    set({'j'}, [](Machine& self) { return self.Get(4); });
    set({'0'}, [](Machine& self) { return self.Pop(); });
    set({'a'}, [](Machine& self) { return self.Append(1); });
    set({'e'}, [](Machine& self) { return self.Append(std::nullopt); });
    set({'s'}, [](Machine& self) { return self.SetItems(2); });
    set({'u'}, [](Machine& self) { return self.SetItems(std::nullopt); });
    set({0x85}, [](Machine& self) { return self.Group(Kind::kTuple, 1); });
    set({0x86}, [](Machine& self) { return self.Group(Kind::kTuple, 2); });
    set({0x87}, [](Machine& self) { return self.Group(Kind::kTuple, 3); });
    set({'t'}, [](Machine& self) { return self.Group(Kind::kTuple, std::nullopt); });
    set({'l'}, [](Machine& self) { return self.Group(Kind::kList, std::nullopt); });
    set({'c'}, [](Machine& self) { return self.Global(); });
    set({0x93}, [](Machine& self) { return self.StackGlobal(); });
    set({'R', 0x81}, [](Machine& self) { return self.MakeObject(); });
    set({0x8f}, [](Machine& self) { return self.PushUnreadable("a set"); });
    set({0x90}, [](Machine& self) { return self.Fill(std::nullopt, Kind::kUnreadable, "adds to what is no set"); });
    set({0x91}, [](Machine& self) { return self.GroupUnreadable("a frozenset"); });
    set({'b'}, [](Machine& self) { return self.Build(); });
    set({'Q'}, [](Machine& self) { return self.Persistent(); });
    return actions;
  }

  absl::Status Step() {
    static const std::array<Action, 256> actions = Actions();
    if (actions[code_] != nullptr) return actions[code_](*this);
    if (ObjectOpcode(code_) != nullptr) return Refuse();
    return Fail(fmt::format("opcode {:#04x}, expected one of plain values", code_));
  }

  // ---- bytes ----

  absl::StatusOr<std::string_view> Take(uint64_t count) {
    if (count > bytes_.size() - at_) return InvalidArgument("cut off after {} bytes", bytes_.size());
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  absl::StatusOr<std::string_view> TakeLine() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) return InvalidArgument("cut off after {} bytes", bytes_.size());
    const std::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }
  // Little endian.
  template <typename Number>
  absl::StatusOr<Number> TakeNumber() {
    LS_ASSIGN_OR_RETURN(const std::string_view taken, Take(sizeof(Number)));
    Number number;
    std::memcpy(&number, taken.data(), sizeof(number));
    return number;
  }
  absl::StatusOr<uint64_t> TakeSize(int bytes) {
    LS_ASSIGN_OR_RETURN(const std::string_view taken, Take(static_cast<uint64_t>(bytes)));
    uint64_t size = 0;
    for (size_t i = taken.size(); i-- > 0;) size = size << 8U | static_cast<unsigned char>(taken[i]);
    return size;
  }

  // ---- the stack ----

  absl::Status Push(PickleValue value) {
    stack_.push_back(static_cast<PickleId>(graph_.values.size()));  // fewer than bytes, which Run's caller bounds
    graph_.values.push_back(std::move(value));
    return absl::OkStatus();
  }
  absl::Status Mark() {
    stack_.push_back(kMark);
    return absl::OkStatus();
  }
  absl::Status Pop() {
    if (stack_.empty()) return Fail("POP of nothing");
    stack_.pop_back();
    return absl::OkStatus();
  }
  // Where `count` values begin, or the newest group, behind its mark.
  absl::StatusOr<size_t> Begin(std::optional<size_t> count) const {
    const size_t looked_at = std::min(count.value_or(stack_.size()), stack_.size());
    const auto last = stack_.rbegin() + static_cast<std::ptrdiff_t>(looked_at);
    const auto above = static_cast<size_t>(std::find(stack_.rbegin(), last, kMark) - stack_.rbegin());
    if (count && above < *count) return Fail("fewer values than it takes");
    if (!count && above == stack_.size()) return Fail("a group without a begin");
    return stack_.size() - above;
  }
  // The values from `begin` on, and a mark below them, leave the stack.
  std::vector<PickleId> Drop(size_t begin, bool marked) {
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<PickleId> dropped(from, stack_.end());
    stack_.resize(begin - (marked ? 1 : 0));
    return dropped;
  }

  // ---- plain values ----

  template <typename Number>
  absl::Status PushInteger() {
    LS_ASSIGN_OR_RETURN(const Number number, TakeNumber<Number>());
    return Push({.kind = Kind::kInteger, .integer = number});
  }

  // Two's complement of as many bytes as a length says.
  absl::Status PushLong(int length_bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t length, TakeSize(length_bytes));
    LS_ASSIGN_OR_RETURN(const std::string_view taken, Take(length));
    if (length > sizeof(int64_t) + 1 || (length == sizeof(int64_t) + 1 && taken.back() != 0)) return PushLarge();
    uint64_t number = !taken.empty() && (static_cast<unsigned char>(taken.back()) & 0x80U) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = std::min(taken.size(), sizeof(number)); i-- > 0;)
      number = number << 8U | static_cast<unsigned char>(taken[i]);
    return Push(
        {.kind = length > sizeof(int64_t) ? Kind::kUnsigned : Kind::kInteger, .integer = static_cast<int64_t>(number)});
  }

  absl::Status PushReal() {
    LS_ASSIGN_OR_RETURN(const auto big_endian, TakeNumber<uint64_t>());
    return Push({.kind = Kind::kReal, .real = std::bit_cast<double>(__builtin_bswap64(big_endian))});
  }

  // A number as text, up to the end of the line.
  absl::Status PushNumberLine() {
    LS_ASSIGN_OR_RETURN(std::string_view text, TakeLine());
    // How protocol 0 writes False and True.
    if (text == "00" || text == "01") return Push({.kind = Kind::kBool, .integer = text == "01"});
    if (text.ends_with('L')) text.remove_suffix(1);
    const Json number = ParseJson(text);
    if (number.is_number_float() && code_ != 'F') return PushLarge();
    if (number.is_number_float()) return Push({.kind = Kind::kReal, .real = number.get<double>()});
    if (!number.is_number()) return Fail("text that is no number");
    const bool large = number.is_number_unsigned() && number.get<uint64_t>() > uint64_t{INT64_MAX};
    return Push({.kind = large ? Kind::kUnsigned : Kind::kInteger, .integer = number.get<int64_t>()});
  }

  absl::Status PushLarge() {
    constexpr std::string_view kWhat = "an integer of more than 64 bits";
    return names_.foreign ? Push({.kind = Kind::kUnreadable, .text = kWhat}) : Fail(kWhat);
  }
  absl::Status PushUnreadable(std::string_view what) {
    return names_.foreign ? Push({.kind = Kind::kUnreadable, .text = what}) : Refuse();
  }
  absl::Status GroupUnreadable(std::string_view what) {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(std::nullopt));
    std::vector<PickleId> parts = Drop(begin, true);
    LS_RETURN_IF_ERROR(PushUnreadable(what));
    graph_.values.back().parts = std::move(parts);
    return absl::OkStatus();
  }

  absl::Status PushText(int length_bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t length, TakeSize(length_bytes));
    LS_ASSIGN_OR_RETURN(const std::string_view text, Take(length));
    return Push({.kind = Kind::kText, .text = text});
  }

  absl::Status Put(int bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t key, TakeSize(bytes));
    return Keep(key);
  }
  absl::Status Keep(uint64_t key) {
    if (stack_.empty() || stack_.back() == kMark) return Fail("keeps a value where there is none");
    memo_[key] = stack_.back();
    return absl::OkStatus();
  }
  absl::Status Get(int bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t key, TakeSize(bytes));
    const auto kept = memo_.find(key);
    if (kept == memo_.end()) return Fail("refers to a value that was not kept");
    stack_.push_back(kept->second);
    return absl::OkStatus();
  }

  absl::Status Group(Kind kind, std::optional<size_t> count) {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(count));
    return Push({.kind = kind, .parts = Drop(begin, !count)});
  }

  // Moves the values into the container below them.
  absl::Status Fill(std::optional<size_t> count, Kind kind, std::string_view otherwise) {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(count));
    const size_t below = begin - (count ? 0 : 1);
    if (below == 0 || stack_[below - 1] == kMark) return Fail(otherwise);
    PickleValue& into = graph_.values[stack_[below - 1]];
    if (into.kind != kind && !MayHaveState(into)) return Fail(otherwise);
    if (kind == Kind::kDict && (stack_.size() - begin) % 2 != 0) return Fail("a key without a value");
    const std::vector<PickleId> values = Drop(begin, !count);
    into.parts.insert(into.parts.end(), values.begin(), values.end());
    return absl::OkStatus();
  }
  absl::Status Append(std::optional<size_t> count) { return Fill(count, Kind::kList, "adds to what is no list"); }
  absl::Status SetItems(std::optional<size_t> count) {
    return Fill(count, Kind::kDict, "sets a member of what is no dict");
  }

  // ---- objects, which are only named ----

  absl::Status PushClass(std::string_view module, std::string_view name) {
    const std::string whole = fmt::format("{}.{}", module, name);
    const auto known = std::find(names_.classes.begin(), names_.classes.end(), whole);
    if (known != names_.classes.end()) return Push({.kind = Kind::kClass, .text = *known});
    if (!names_.foreign) return Refuse(fmt::format("{} {}", Printable(module), Printable(name)));
    const auto kept = graph_.foreign.insert(fmt::format("{}.{}", Printable(module), Printable(name))).first;
    return Push({.kind = Kind::kClass, .text = *kept});
  }
  absl::Status Global() {
    LS_ASSIGN_OR_RETURN(const std::string_view module, TakeLine());
    LS_ASSIGN_OR_RETURN(const std::string_view name, TakeLine());
    return PushClass(module, name);
  }
  absl::Status StackGlobal() {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(2));
    const PickleValue &module = graph_.At(stack_[begin]), &name = graph_.At(stack_[begin + 1]);
    if (module.kind != Kind::kText || name.kind != Kind::kText) return Refuse();
    Drop(begin, false);
    return PushClass(module.text, name.text);
  }

  static bool MayHaveState(const PickleValue& value) {
    return value.kind == Kind::kObject || value.kind == Kind::kUnreadable;
  }
  absl::Status MakeObject() {  // of a class and its arguments
    if (names_.classes.empty()) return Refuse();
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(2));
    const PickleId args = stack_[begin + 1];
    const PickleId maker = stack_[begin];
    const std::string_view name = graph_.At(maker).text;
    const bool of_class = graph_.At(maker).kind == Kind::kClass && graph_.At(args).kind == Kind::kTuple;
    if (!of_class && !names_.foreign) return Refuse();
    Drop(begin, false);
    if (!of_class) return Push({.kind = Kind::kUnreadable, .text = "made by running code", .parts = {maker, args}});
    return Push({.kind = Kind::kObject, .text = name, .args = args});
  }
  absl::Status Build() {
    if (names_.classes.empty()) return Refuse();
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(2));
    PickleValue& object = graph_.values[stack_[begin]];
    if (!MayHaveState(object)) return Refuse();
    object.state = stack_[begin + 1];
    return Pop();
  }
  absl::Status Persistent() {
    if (!names_.persistent) return Refuse();
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(1));
    const PickleId what = stack_[begin];
    Drop(begin, false);
    return Push({.kind = Kind::kPersistent, .args = what});
  }

  const std::string_view bytes_;
  const PickleNames& names_;
  size_t at_ = 0, begin_ = 0;  // begin_: of the opcode
  unsigned char code_ = 0;
  PickleGraph graph_;
  std::vector<PickleId> stack_;
  std::map<uint64_t, PickleId> memo_;
};

}  // namespace

absl::StatusOr<PickleGraph> ReadPickleGraph(std::string_view bytes, const PickleNames& names) {
  if (bytes.size() >= kNoPickle) return InvalidArgument("{} bytes are too many for one pickle", bytes.size());
  LS_ASSIGN_OR_RETURN(PickleGraph graph, Machine(bytes, names).Run());
  const PickleValue& root = graph.At(graph.root);
  const bool is_foreign = root.kind == PickleKind::kUnreadable || graph.foreign.contains(root.text);
  if (!names.foreign || !is_foreign) return graph;
  PickleNames strict = names;  // which says at which byte what is refused
  strict.foreign = false;
  return Machine(bytes, strict).Run();
}

}  // namespace lockstep::trace
