#include "lockstep/reshape/torch_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/json_text.h"
#include "lockstep/reshape/dtype.h"
#include "lockstep/reshape/pickled.h"
#include "lockstep/reshape/zip.h"
#include "lockstep/trace/pickle.h"

namespace lockstep::reshape {
namespace {

using trace::kNoPickle;
using trace::PickleKind;

constexpr uint64_t kLargestPickle = 1ULL << 30U;
constexpr int kDeepest = 64;
constexpr std::string_view kDictClass = "collections.OrderedDict", kNamespaceClass = "argparse.Namespace";
constexpr std::string_view kTensor2 = "torch._utils._rebuild_tensor_v2", kTensor3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

const std::vector<std::string_view>& AllowedClasses() {
  static const auto* const classes = [] {
    auto* all = new std::vector<std::string_view>{kDictClass, kNamespaceClass, kTensor2,       kTensor3,
                                                  kParameter, kUntyped,        "torch.device", "torch.Size"};
    for (const Dtype& dtype : Dtypes()) {
      all->push_back(dtype.in_pickles);
      if (!dtype.storage.empty()) all->push_back(dtype.storage);
    }
    return all;
  }();
  return *classes;
}

// A tensor as its pickle names it.
struct Described {
  const Dtype* dtype = nullptr;
  std::string key;        // of its storage
  uint64_t elements = 0;  // of its storage
  uint64_t first = 0;     // its first element there
  std::vector<uint64_t> sizes, strides;
};

class Reader {
 public:
  Reader(const Slice& slice, const std::string& file, TorchFile& into) : slice_(slice), file_(file), into_(into) {}

  absl::Status Read(const std::string& name) {
    LS_ASSIGN_OR_RETURN(zip_, Zip::Open(slice_));
    into_.has_sums = zip_.has_sums();
    LS_RETURN_IF_ERROR(FindPrefix());
    LS_ASSIGN_OR_RETURN(const Slice record, zip_.Find(prefix_ + "data.pkl"));
    if (record.bytes > kLargestPickle) return DataLoss("{}: its data.pkl is larger than 1 GiB", slice_.path);
    LS_ASSIGN_OR_RETURN(pickle_, record.Text(0, record.bytes));
    LS_RETURN_IF_ERROR(
        CompareSum(record, std::as_bytes(std::span(pickle_)), zip_.entries().find(prefix_ + "data.pkl")->second.crc32));
    const trace::PickleNames names{
        .classes = AllowedClasses(), .persistent = true, .foreign = true, .expected = "tensors and plain values"};
    auto graph = trace::ReadPickleGraph(pickle_, names);
    if (!graph.ok()) return InvalidArgument("{}: data.pkl: {}", slice_.path, Message(graph.status()));
    graph_ = *std::move(graph);
    left_ = trace::LargestOf(pickle_.size());
    plain_.assign(graph_.values.size(), kUnknown);
    searched_.assign(graph_.values.size(), false);
    return Walk(graph_.root, name, 0);
  }

 private:
  enum Plainness : uint8_t { kUnknown, kUnderWay, kPlain, kNotPlain };

  absl::Status Fail(const std::string& name, std::string_view what) const {
    return DataLoss("{}: tensor {}: {}", slice_.path, name.empty() ? "(the only one)" : name, what);
  }

  // As Fail, of a tensor that is whole, and of a kind that is not read.
  absl::Status Refuse(const std::string& name, std::string_view what) const {
    return InvalidArgument("{}", Message(Fail(name, what)));
  }

  // All entries lie in one folder, named by whoever saved; and numbers are little endian.
  absl::Status FindPrefix() {
    for (const auto& [name, entry] : zip_.entries()) {
      const size_t slash = name.find('/');
      if (slash != std::string::npos && name.substr(slash) == "/data.pkl") prefix_ = name.substr(0, slash + 1);
    }
    if (prefix_.empty()) return DataLoss("{}: the archive has no data.pkl: it is not of torch.save", slice_.path);
    if (!zip_.entries().contains(prefix_ + "byteorder")) return absl::OkStatus();
    LS_ASSIGN_OR_RETURN(const Slice order, zip_.Find(prefix_ + "byteorder"));
    LS_ASSIGN_OR_RETURN(const std::string text, order.Text(0, std::min<uint64_t>(order.bytes, 16)));
    if (text != "little") return DataLoss("{}: its numbers are {} endian, expected little", slice_.path, text);
    return absl::OkStatus();
  }

  // ---- what is plain ----

  // Once for each value, however often it is meant; a value that holds itself is not plain.
  bool IsPlain(PickleId id, int depth) {
    if (plain_[id] == kUnknown) {
      plain_[id] = kUnderWay;
      plain_[id] = depth <= kDeepest && LooksPlain(graph_.At(id), depth) ? kPlain : kNotPlain;
    }
    return plain_[id] == kPlain;
  }
  bool LooksPlain(const PickleValue& value, int depth) {
    if (value.kind == PickleKind::kClass || value.kind >= PickleKind::kObject) return false;
    if (value.kind == PickleKind::kReal && !std::isfinite(value.real)) return false;  // JSON has none
    return std::all_of(value.parts.begin(), value.parts.end(), [&](PickleId part) { return IsPlain(part, depth + 1); });
  }

  // ---- what is there ----

  absl::Status Walk(PickleId id, const std::string& name, int depth) {
    const PickleValue& value = graph_.At(id);
    if (depth > kDeepest) return InvalidArgument("{}: {} lies more than {} deep", slice_.path, name, kDeepest);
    if (left_ == 0) return InvalidArgument("{}: repeats itself beyond all measure", slice_.path);
    --left_;
    if (IsTensor(value)) return AddTensor(id, name);
    const bool holds_more = !value.parts.empty();
    if (holds_more && (value.kind == PickleKind::kDict || IsObject(value, kDictClass)))
      return WalkDict(value, name, depth);
    if (IsObject(value, kNamespaceClass) && value.state != kNoPickle) return Walk(value.state, name, depth + 1);
    if (IsPlain(id, 0)) return AddValue(id, name);
    if (value.kind == PickleKind::kList || value.kind == PickleKind::kTuple) return WalkList(value, name, depth);
    return AddOther(id, name);
  }
  static bool IsObject(const PickleValue& value, std::string_view name) {
    return value.kind == PickleKind::kObject && value.text == name;
  }
  static std::string Below(const std::string& name, const std::string& key) {
    return name.empty() ? key : name + "." + key;
  }
  absl::Status WalkDict(const PickleValue& dict, const std::string& name, int depth) {
    for (size_t i = 0; i + 1 < dict.parts.size(); i += 2)
      LS_RETURN_IF_ERROR(Walk(dict.parts[i + 1], Below(name, KeyName(dict.parts[i], 0)), depth + 1));
    return absl::OkStatus();
  }
  absl::Status WalkList(const PickleValue& list, const std::string& name, int depth) {
    for (size_t i = 0; i < list.parts.size(); ++i)
      LS_RETURN_IF_ERROR(Walk(list.parts[i], Below(name, std::to_string(i)), depth + 1));
    return absl::OkStatus();
  }

  // As Python shows it: keys are text, numbers, or (Megatron's) tuples of dtypes.
  std::string KeyName(PickleId id, int depth) const {
    const PickleValue& key = graph_.At(id);
    switch (key.kind) {
      case PickleKind::kText:
      case PickleKind::kClass:
        return std::string(key.text);
      case PickleKind::kInteger:
        return std::to_string(key.integer);
      case PickleKind::kReal:
        return OneLine(Json(key.real));
      case PickleKind::kNone:
        return "None";
      case PickleKind::kBool:
        return key.integer != 0 ? "True" : "False";
      case PickleKind::kTuple: {
        std::string text = "(";
        for (size_t i = 0; i < key.parts.size() && depth < kDeepest && text.size() < 1024; ++i)
          text += (i == 0 ? "" : ", ") + KeyName(key.parts[i], depth + 1);
        return text + ")";
      }
      default:
        return "?";
    }
  }

  absl::Status AddValue(PickleId id, const std::string& name) {
    const auto value = trace::PlainValue(graph_, id, left_);
    if (!value.ok()) return InvalidArgument("{}: {}: {}", slice_.path, name, Message(value.status()));
    LS_RETURN_IF_ERROR(TakeName(name));
    into_.values.push_back({name, OneLine(*value)});
    return absl::OkStatus();
  }
  absl::Status AddOther(PickleId id, const std::string& name) {
    const PickleValue& value = graph_.At(id);
    LS_RETURN_IF_ERROR(TakeName(name));
    if (IsObject(value, kDictClass)) {
      into_.values.push_back({name, "{}"});
    } else if (const auto sizes = IsObject(value, "torch.Size") ? SizesOf(graph_, id) : std::nullopt) {
      into_.values.push_back({name, OneLine(Json(*sizes))});
    } else if (value.kind != PickleKind::kPersistent && HoldsStorage(id)) {  // sparse, or of a class of its own
      return InvalidArgument("{}: data.pkl: {} is {} and has tensors in it: expected plain ones", slice_.path, name,
                             WhatIs(value));
    } else {
      into_.passed_over.push_back(
          fmt::format("{}: {} is {}, neither a tensor nor a plain value", slice_.path, name, WhatIs(value)));
    }
    return absl::OkStatus();
  }
  static std::string WhatIs(const PickleValue& value) {
    if (value.text.empty()) return "not known here";
    return value.kind == PickleKind::kObject ? fmt::format("of {}", value.text) : std::string(value.text);
  }
  // Looks at each value once, whatever is asked: where it finds one, the file is refused.
  bool HoldsStorage(PickleId id) {
    for (std::vector<PickleId> next = {id}; !next.empty();) {
      const PickleId at = next.back();
      next.pop_back();
      if (at == kNoPickle || searched_[at]) continue;
      searched_[at] = true;
      const PickleValue& value = graph_.At(at);
      if (value.kind == PickleKind::kPersistent) return true;
      next.insert(next.end(), value.parts.begin(), value.parts.end());
      next.insert(next.end(), {value.args, value.state});
    }
    return false;
  }
  absl::Status TakeName(const std::string& name) {
    if (!names_.insert(name).second)
      return InvalidArgument("{}: two things are named {}, for a key has a dot in it: rename one", slice_.path, name);
    return absl::OkStatus();
  }

  // ---- tensors ----

  static bool IsTensor(const PickleValue& value) {
    return IsObject(value, kTensor2) || IsObject(value, kTensor3) || IsObject(value, kParameter);
  }

  absl::Status AddTensor(PickleId id, const std::string& name) {
    LS_RETURN_IF_ERROR(TakeName(name));
    for (int depth = 0; graph_.At(id).text == kParameter; ++depth) {  // wraps a tensor
      const std::vector<PickleId>& args = graph_.At(graph_.At(id).args).parts;
      if (args.empty() || !IsTensor(graph_.At(args.front())) || depth > 1)
        return Fail(name, "a parameter of no tensor");
      id = args.front();
    }
    LS_ASSIGN_OR_RETURN(const Described tensor, Describe(id, name));
    LS_ASSIGN_OR_RETURN(const Slice storage, FindStorage(tensor, name));
    LS_RETURN_IF_ERROR(CheckReach(tensor, name));
    Shard shard{.box = WholeOf(tensor.sizes), .strides = tensor.strides, .file = file_};
    shard.at = storage.begin + tensor.first * tensor.dtype->bytes;
    shard.storage_at = storage.begin;
    shard.storage_bytes = storage.bytes;
    shard.crc32 = zip_.entries().find(prefix_ + "data/" + tensor.key)->second.crc32;
    into_.tensors.push_back({name, std::string(tensor.dtype->torch), tensor.sizes, {std::move(shard)}});
    return absl::OkStatus();
  }

  // _rebuild_tensor_v2(storage, first, sizes, strides, requires_grad, hooks[, bits]); v3 has its dtype before the bits.
  absl::StatusOr<Described> Describe(PickleId id, const std::string& name) const {
    const std::vector<PickleId>& args = graph_.At(graph_.At(id).args).parts;
    Described tensor;
    if (args.size() < 4) return Fail(name, "it lacks its sizes");
    LS_RETURN_IF_ERROR(ReadStorage(args[0], name, tensor));
    const size_t bits = graph_.At(id).text == kTensor3 ? 7 : 6;
    if (args.size() > bits) LS_RETURN_IF_ERROR(CheckBits(args[bits], name));
    if (graph_.At(id).text == kTensor3 && args.size() > 6) {
      const auto dtype = ClassOf(graph_, args[6]);
      tensor.dtype = dtype ? DtypeOf(*dtype) : nullptr;
    }
    const auto first = SizeOf(graph_, args[1]);
    const auto sizes = SizesOf(graph_, args[2]), strides = SizesOf(graph_, args[3]);
    if (tensor.dtype == nullptr) return Refuse(name, "its dtype is not known here");
    if (!first || !sizes || !strides || sizes->size() != strides->size()) return Fail(name, "its sizes are damaged");
    tensor.first = *first;
    tensor.sizes = *sizes;
    tensor.strides = *strides;
    return tensor;
  }

  // {'conj': True}: torch conjugates, or negates ('neg'), what lies in the storage whenever it is read.
  absl::Status CheckBits(PickleId id, const std::string& name) const {
    const PickleValue& bits = graph_.At(id);
    if (bits.kind == PickleKind::kNone || (bits.kind == PickleKind::kDict && bits.parts.empty()))
      return absl::OkStatus();
    const std::string key = bits.parts.empty() ? "?" : KeyName(bits.parts.front(), 0);
    return Refuse(name,
                  fmt::format("it is a view with the bit \"{}\", and its storage does not hold its values: save it "
                              "after resolve_conj() and resolve_neg()",
                              key));
  }

  // ('storage', torch.FloatStorage, key, device, elements)
  absl::Status ReadStorage(PickleId id, const std::string& name, Described& tensor) const {
    if (graph_.At(id).kind != PickleKind::kPersistent) return Fail(name, "it has no storage");
    const auto what = ItemsOf(graph_, graph_.At(id).args);
    if (!what || what->size() != 5 || TextOf(graph_, what->front()) != "storage")
      return Fail(name, "its storage is damaged");
    const auto kind = ClassOf(graph_, (*what)[1]);
    const auto key = TextOf(graph_, (*what)[2]);
    const auto elements = SizeOf(graph_, (*what)[4]);
    if (!kind || !key || !elements) return Fail(name, "its storage is damaged");
    tensor.dtype = DtypeOf(*kind);
    if (tensor.dtype == nullptr && *kind != kUntyped) return Fail(name, fmt::format("{} is no storage", *kind));
    tensor.key = *key;
    tensor.elements = *elements;
    return absl::OkStatus();
  }

  absl::StatusOr<Slice> FindStorage(const Described& tensor, const std::string& name) {
    const auto entry = zip_.entries().find(prefix_ + "data/" + tensor.key);
    if (entry == zip_.entries().end()) return Fail(name, fmt::format("its storage data/{} is missing", tensor.key));
    uint64_t bytes = 0;
    const uint64_t unit = entry->second.bytes == tensor.elements ? 1 : tensor.dtype->bytes;  // untyped ones count bytes
    if (__builtin_mul_overflow(tensor.elements, unit, &bytes) || bytes != entry->second.bytes)
      return Fail(name, fmt::format("its storage data/{} has {} bytes, expected {} elements of {}", tensor.key,
                                    entry->second.bytes, tensor.elements, tensor.dtype->torch));
    auto [found, is_new] = storages_.try_emplace(tensor.key);
    if (is_new) {
      LS_ASSIGN_OR_RETURN(found->second, zip_.Find(entry->first));
    }
    return found->second;
  }

  // Its last element lies in its storage.
  absl::Status CheckReach(const Described& tensor, const std::string& name) const {
    if (!Elements(tensor.sizes, tensor.dtype->bytes).ok()) return Fail(name, "its sizes are larger than any memory");
    const bool empty = std::find(tensor.sizes.begin(), tensor.sizes.end(), 0U) != tensor.sizes.end();
    const uint64_t elements = storages_.find(tensor.key)->second.bytes / tensor.dtype->bytes;
    uint64_t end = tensor.first;
    bool overflow = false;
    for (size_t d = 0; d < tensor.sizes.size() && !empty; ++d) {
      uint64_t reach = 0;
      overflow |= __builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &reach);
      overflow |= __builtin_add_overflow(end, reach, &end);
    }
    if (overflow || end > elements || (end == elements && !empty))
      return Fail(name, fmt::format("it reaches beyond the {} elements of its storage", elements));
    return absl::OkStatus();
  }

  const Slice& slice_;
  const std::string& file_;
  TorchFile& into_;
  Zip zip_;
  std::string prefix_, pickle_;  // the pickle holds the graph's text
  PickleGraph graph_;
  uint64_t left_ = 0;
  std::vector<Plainness> plain_;
  std::vector<bool> searched_;
  std::set<std::string> names_;
  std::map<std::string, Slice> storages_;
};

}  // namespace

std::string SaysNoSums(std::string_view path) {
  return fmt::format(
      "{}: the sums of its tensors, for it was saved with torch.serialization.set_crc32_options(False): whether it is "
      "damaged can't be told",
      path);
}

absl::StatusOr<TorchFile> ReadTorchFile(const Slice& slice, const std::string& file, const std::string& name) {
  TorchFile saved;
  LS_ASSIGN_OR_RETURN(const std::string begin, slice.Text(0, std::min<uint64_t>(slice.bytes, 2)));
  constexpr char kPickle = '\x80';  // and its protocol
  constexpr unsigned char kNewestProtocol = 5;
  if (begin.size() == 2 && begin[0] == kPickle && static_cast<unsigned char>(begin[1]) <= kNewestProtocol)
    return InvalidArgument(
        "{}: it begins as a pickle: the format of before torch 1.6, or no file of torch.save: load it and save it anew "
        "with torch 1.6 or newer",
        slice.path);
  if (begin != "PK")
    return DataLoss("{}: at {} begins no zip: expected a file of torch.save of torch 1.6 or newer", slice.path,
                    slice.begin);
  LS_RETURN_IF_ERROR(Reader(slice, file, saved).Read(name));
  return saved;
}

}  // namespace lockstep::reshape
