#include "lockstep/trace/pickle.h"

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace lockstep::trace {
namespace {

constexpr int kDeepest = 64;
constexpr uint64_t kLargestPerByte = 16;  // values

// A value on the stack, or the mark below a group of them.
struct Item {
  Json value;
  int depth = 0;       // of what it contains
  uint64_t nodes = 1;  // in it, itself included
  bool is_mark = false;
};

// What makes objects; pickletools' names.
const char* RefusedName(unsigned char code) {
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
    default:
      return nullptr;
  }
}

class Machine {
 public:
  explicit Machine(std::string_view bytes) : bytes_(bytes) {}

  absl::StatusOr<Json> Run() {
    while (at_ < bytes_.size()) {
      begin_ = at_;
      const auto code = static_cast<unsigned char>(bytes_[at_++]);
      if (code == '.') {
        if (stack_.size() != 1 || stack_.front().is_mark) return Fail("the end, expected one value before it");
        return std::move(stack_.front().value);
      }
      LS_RETURN_IF_ERROR(Step(code));
    }
    return InvalidArgument("cut off after {} bytes", bytes_.size());
  }

 private:
  absl::Status Fail(std::string_view what) const { return InvalidArgument("byte {}: {}", begin_, what); }

  using Action = absl::Status (*)(Machine&);
  // By opcode; null: none of plain values.
  static std::array<Action, 256> Actions() {
    std::array<Action, 256> actions{};
    const auto set = [&actions](std::initializer_list<unsigned char> codes, Action action) {
      for (const unsigned char code : codes) actions[code] = action;
    };
    set({0x80}, [](Machine& self) { return self.Skip(1); });  // PROTO
    set({0x95}, [](Machine& self) { return self.Skip(8); });  // FRAME
    set({'('}, [](Machine& self) { return self.Push({.value = nullptr, .is_mark = true}); });
    set({'N'}, [](Machine& self) { return self.Push(Json()); });
    set({0x88}, [](Machine& self) { return self.Push(Json(true)); });
    set({0x89}, [](Machine& self) { return self.Push(Json(false)); });
    set({'}'}, [](Machine& self) { return self.Push(Json::object()); });
    set({']', ')'}, [](Machine& self) { return self.Push(Json::array()); });
    set({'J'}, [](Machine& self) { return self.PushInteger<int32_t>(); });
    set({'K'}, [](Machine& self) { return self.PushInteger<uint8_t>(); });
    set({'M'}, [](Machine& self) { return self.PushInteger<uint16_t>(); });
    set({0x8a}, [](Machine& self) { return self.PushLong(1); });
    set({0x8b}, [](Machine& self) { return self.PushLong(4); });
    set({'G'}, [](Machine& self) { return self.PushDouble(); });
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
    set({0x85}, [](Machine& self) { return self.Tuple(1); });
    set({0x86}, [](Machine& self) { return self.Tuple(2); });
    set({0x87}, [](Machine& self) { return self.Tuple(3); });
    set({'t', 'l'}, [](Machine& self) { return self.Tuple(std::nullopt); });
    return actions;
  }

  absl::Status Step(unsigned char code) {
    static const std::array<Action, 256> actions = Actions();
    if (actions[code] != nullptr) return actions[code](*this);
    if (const char* name = RefusedName(code))
      return Fail(
          fmt::format("{}{} is refused: it makes objects by running code; expected plain values", name, Named(code)));
    return Fail(fmt::format("opcode {:#04x}, expected one of plain values", code));
  }

  // " os system", of a GLOBAL.
  std::string Named(unsigned char code) const {
    if (code != 'c' && code != 'i') return "";
    std::string name;
    size_t at = at_;
    for (int line = 0; line < 2; ++line) {
      const size_t end = bytes_.find('\n', at);
      if (end == std::string_view::npos) return "";
      name += " ";
      for (const char c : bytes_.substr(at, std::min<size_t>(end - at, 64))) name += c >= ' ' && c <= '~' ? c : '?';
      at = end + 1;
    }
    return name;
  }

  absl::StatusOr<std::string_view> Take(uint64_t count) {
    if (count > bytes_.size() - at_) return InvalidArgument("cut off after {} bytes", bytes_.size());
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  absl::Status Skip(uint64_t count) { return Take(count).status(); }

  // Little endian.
  template <typename Number>
  absl::StatusOr<Number> TakeNumber() {
    LS_ASSIGN_OR_RETURN(const std::string_view taken, Take(sizeof(Number)));
    Number number;
    std::memcpy(&number, &taken.front(), sizeof(number));
    return number;
  }
  absl::StatusOr<uint64_t> TakeSize(int bytes) {
    LS_ASSIGN_OR_RETURN(const std::string_view taken, Take(static_cast<uint64_t>(bytes)));
    uint64_t size = 0;
    for (size_t i = taken.size(); i-- > 0;) size = size << 8U | static_cast<unsigned char>(taken[i]);
    return size;
  }

  absl::Status CountIn(uint64_t nodes) {
    made_ += nodes;
    if (made_ > kLargestPerByte * bytes_.size() + kDeepest) return Fail("repeats itself beyond all measure");
    return absl::OkStatus();
  }
  absl::Status Push(Item item) {
    LS_RETURN_IF_ERROR(CountIn(item.nodes));
    stack_.push_back(std::move(item));
    return absl::OkStatus();
  }
  absl::Status Push(Json value) { return Push(Item{.value = std::move(value)}); }

  template <typename Number>
  absl::Status PushInteger() {
    LS_ASSIGN_OR_RETURN(const Number number, TakeNumber<Number>());
    return Push(Json(number));
  }

  // Two's complement of as many bytes as a length says.
  absl::Status PushLong(int length_bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t length, TakeSize(length_bytes));
    LS_ASSIGN_OR_RETURN(const std::string_view taken, Take(length));
    if (length > sizeof(int64_t) + 1 || (length == sizeof(int64_t) + 1 && taken.back() != 0))
      return Fail("an integer of more than 64 bits");
    uint64_t number = !taken.empty() && (static_cast<unsigned char>(taken.back()) & 0x80U) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = std::min(taken.size(), sizeof(number)); i-- > 0;)
      number = number << 8U | static_cast<unsigned char>(taken[i]);
    return Push(length > sizeof(int64_t) ? Json(number) : Json(static_cast<int64_t>(number)));
  }

  absl::Status PushDouble() {
    LS_ASSIGN_OR_RETURN(const auto big_endian, TakeNumber<uint64_t>());
    return Push(Json(std::bit_cast<double>(__builtin_bswap64(big_endian))));
  }

  // A number as text, up to the end of the line.
  absl::Status PushNumberLine() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) return InvalidArgument("cut off after {} bytes", bytes_.size());
    std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    if (text == "00" || text == "01") return Push(Json(text == "01"));  // how protocol 0 writes False and True
    if (text.ends_with('L')) text.remove_suffix(1);
    Json number = Json::parse(text, nullptr, false);
    return number.is_number() ? Push(std::move(number)) : Fail("text that is no number");
  }

  absl::Status PushText(int length_bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t length, TakeSize(length_bytes));
    LS_ASSIGN_OR_RETURN(const std::string_view text, Take(length));
    return Push(Json(text));
  }

  absl::Status Pop() {
    if (stack_.empty()) return Fail("POP of nothing");
    stack_.pop_back();
    return absl::OkStatus();
  }

  absl::Status Put(int bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t key, TakeSize(bytes));
    return Keep(key);
  }
  absl::Status Keep(uint64_t key) {
    if (stack_.empty() || stack_.back().is_mark) return Fail("keeps a value where there is none");
    // Containers are kept while they are empty: what they are filled with later is theirs, not the memo's. What repeats
    // in a dump is text.
    memo_[key] = stack_.back();
    return CountIn(stack_.back().nodes);
  }
  absl::Status Get(int bytes) {
    LS_ASSIGN_OR_RETURN(const uint64_t key, TakeSize(bytes));
    const auto kept = memo_.find(key);
    if (kept == memo_.end()) return Fail("refers to a value that was not kept");
    if (kept->second.value.is_structured() && !(kept->second.value.is_array() && kept->second.nodes > 1))
      return Fail("refers to a container a second time; expected each to be written where it stands");
    return Push(kept->second);
  }

  // Where the newest group begins, behind its mark.
  absl::StatusOr<size_t> GroupBegin() const {
    for (size_t i = stack_.size(); i-- > 0;)
      if (stack_[i].is_mark) return i + 1;
    return Fail("a group without a begin");
  }

  // Where `count` values begin, or the newest group; they must stand above a container.
  absl::StatusOr<size_t> Begin(std::optional<size_t> count) const {
    if (!count) return GroupBegin();
    if (stack_.size() < *count) return Fail("fewer values than it takes");
    for (size_t i = stack_.size() - *count; i < stack_.size(); ++i)
      if (stack_[i].is_mark) return Fail("fewer values than it takes");
    return stack_.size() - *count;
  }

  static absl::Status TooDeep() { return InvalidArgument("values nested more than {} deep", kDeepest); }

  // Moves the values from `begin` on into the container, and drops the mark below them.
  template <typename Use>
  absl::Status Fill(size_t begin, bool marked, Item& into, const Use& use) {
    for (size_t i = begin; i < stack_.size(); ++i) {
      into.depth = std::max(into.depth, stack_[i].depth + 1);
      into.nodes += stack_[i].nodes;
    }
    if (into.depth > kDeepest) return TooDeep();
    LS_RETURN_IF_ERROR(use());
    stack_.resize(begin - (marked ? 1 : 0));
    return absl::OkStatus();
  }

  absl::Status Append(std::optional<size_t> count) {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(count));
    const size_t below = begin - (count ? 0 : 1);
    if (below == 0 || !stack_[below - 1].value.is_array()) return Fail("adds to what is no list");
    Item& list = stack_[below - 1];
    return Fill(begin, !count, list, [&] {
      for (size_t i = begin; i < stack_.size(); ++i) list.value.push_back(std::move(stack_[i].value));
      return absl::OkStatus();
    });
  }

  absl::Status SetItems(std::optional<size_t> count) {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(count));
    const size_t below = begin - (count ? 0 : 1);
    if (below == 0 || !stack_[below - 1].value.is_object()) return Fail("sets a member of what is no dict");
    if ((stack_.size() - begin) % 2 != 0) return Fail("a key without a value");
    Item& dict = stack_[below - 1];
    return Fill(begin, !count, dict, [&]() -> absl::Status {
      for (size_t i = begin; i < stack_.size(); i += 2) {
        if (stack_[i].value.is_structured()) return Fail("a key that is no text");
        const std::string key =
            stack_[i].value.is_string() ? stack_[i].value.get<std::string>() : stack_[i].value.dump();
        dict.value[key] = std::move(stack_[i + 1].value);
      }
      return absl::OkStatus();
    });
  }

  absl::Status Tuple(std::optional<size_t> count) {
    LS_ASSIGN_OR_RETURN(const size_t begin, Begin(count));
    Item tuple{.value = Json::array()};
    LS_RETURN_IF_ERROR(Fill(begin, !count, tuple, [&] {
      for (size_t i = begin; i < stack_.size(); ++i) tuple.value.push_back(std::move(stack_[i].value));
      return absl::OkStatus();
    }));
    stack_.push_back(std::move(tuple));
    return absl::OkStatus();
  }

  const std::string_view bytes_;
  size_t at_ = 0, begin_ = 0;  // begin_: of the opcode
  uint64_t made_ = 0;          // values
  std::vector<Item> stack_;
  std::map<uint64_t, Item> memo_;
};

}  // namespace

absl::StatusOr<Json> ReadPickle(std::string_view bytes) { return Machine(bytes).Run(); }

}  // namespace lockstep::trace
