#include "lockstep/reshape/dcp.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/base/number.h"
#include "lockstep/reshape/dtype.h"
#include "lockstep/reshape/pickled.h"
#include "lockstep/reshape/torch_file.h"

namespace lockstep::reshape {
namespace {

using trace::kNoPickle;
using trace::PickleKind;

constexpr uint64_t kLargestMetadata = 1ULL << 30U;

// What `.metadata` is made of: of torch 2, of torch 1.13, and of Megatron, whose Metadata is a kind of torch's.
constexpr std::string_view kClasses[] = {
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed._shard.checkpoint.metadata.Metadata",
    "torch.distributed._shard.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed._shard.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed._shard.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed._shard.checkpoint.metadata.MetadataIndex",
    "torch.distributed._shard.checkpoint.filesystem._StorageInfo",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
    "builtins.getattr",  // of Python 3.11, for a member of an enum; of nothing else (CheckMembers)
    "torch.Size",
    "torch.serialization._get_layout",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
};

const std::vector<std::string_view>& AllowedClasses() {
  static const auto* const classes = [] {
    auto* all = new std::vector<std::string_view>(std::begin(kClasses), std::end(kClasses));
    for (const Dtype& dtype : Dtypes()) all->push_back(dtype.in_pickles);
    return all;
  }();
  return *classes;
}

// A file may only be one below the folder.
bool IsBelow(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos) return false;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (slash == 0 || path.substr(0, slash) == "." || path.substr(0, slash) == "..") return false;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return true;
}

// "__3_0.distcp" is of rank 3; -1: it has another name.
int RankOf(std::string_view file) {
  constexpr int kMost = 1 << 24;
  if (!file.starts_with("__")) return -1;
  file.remove_prefix(2);
  const int rank = TakeNumber<int>(file).value_or(-1);
  return file.starts_with('_') && rank >= 0 && rank < kMost ? rank : -1;
}

class Reader {
 public:
  Reader(checkpoint::Disk& disk, const std::string& folder) : disk_(disk), path_(folder + "/" + kDcpMetadata) {
    saved_.kind = "dcp";
    saved_.folder = folder;
  }

  absl::StatusOr<Saved> Read() {
    LS_ASSIGN_OR_RETURN(const Slice file, WholeFile(disk_, path_));
    if (file.bytes > kLargestMetadata) return Fail("it is larger than 1 GiB");
    LS_ASSIGN_OR_RETURN(pickle_, file.Text(0, file.bytes));
    auto graph = trace::ReadPickleGraph(
        pickle_, {.classes = AllowedClasses(), .expected = "what torch.distributed.checkpoint writes"});
    if (!graph.ok()) return InvalidArgument("{}: {}", path_, Message(graph.status()));
    graph_ = *std::move(graph);
    LS_RETURN_IF_ERROR(CheckMembers());
    LS_RETURN_IF_ERROR(ReadPlaces());
    LS_RETURN_IF_ERROR(ReadItems());
    for (const std::string& path : without_sums_) saved_.passed_over.push_back(SaysNoSums(path));
    for (const std::string& name : files_) saved_.world_size = std::max(saved_.world_size, RankOf(name) + 1);
    return std::move(saved_);
  }

 private:
  struct Place {
    std::string file;
    Slice slice;
  };
  using Offsets = std::vector<uint64_t>;

  absl::Status Fail(std::string_view what) const { return DataLoss("{}: {}", path_, what); }
  const PickleValue* Dict(PickleId id) const {
    return id != kNoPickle && graph_.At(id).kind == PickleKind::kDict ? &graph_.At(id) : nullptr;
  }

  // getattr(MEM_FORMAT_ENCODING, name)
  absl::Status CheckMembers() const {
    for (const PickleValue& value : graph_.values) {
      if (!IsA(value, "getattr")) continue;
      const std::vector<PickleId>& args = graph_.At(value.args).parts;
      const auto of = args.empty() ? std::nullopt : ClassOf(graph_, args.front());
      if (!of || !of->ends_with("MEM_FORMAT_ENCODING"))
        return InvalidArgument("{}: getattr of {} is refused: expected a member of MEM_FORMAT_ENCODING", path_,
                               of.value_or("something else"));
    }
    return absl::OkStatus();
  }

  // storage_data: {MetadataIndex(fqn, offset): _StorageInfo(relative_path, offset, length)}
  absl::Status ReadPlaces() {
    const PickleValue* places = Dict(AttributeOf(graph_, graph_.root, "storage_data"));
    if (places == nullptr) return Fail("it has no storage_data: it is not of torch.distributed.checkpoint's files");
    for (size_t i = 0; i + 1 < places->parts.size(); i += 2) {
      const PickleId index = places->parts[i];
      const auto name = TextOf(graph_, AttributeOf(graph_, index, "fqn"));
      if (!name) return Fail(fmt::format("entry {} of storage_data has no name", i / 2));
      const auto offsets = SizesOf(graph_, AttributeOf(graph_, index, "offset"));  // values have none
      LS_ASSIGN_OR_RETURN(Place place, ReadPlace(*name, places->parts[i + 1]));
      places_[std::string(*name)].insert_or_assign(offsets.value_or(Offsets{}), std::move(place));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Place> ReadPlace(std::string_view name, PickleId info) {
    const auto file = TextOf(graph_, AttributeOf(graph_, info, "relative_path"));
    const auto begin = SizeOf(graph_, AttributeOf(graph_, info, "offset"));
    const auto bytes = SizeOf(graph_, AttributeOf(graph_, info, "length"));
    if (!file || !begin || !bytes) return Fail(fmt::format("the place of {} is damaged", name));
    if (!IsBelow(*file)) return Fail(fmt::format("{} lies in \"{}\", which leaves the folder", name, *file));
    LS_ASSIGN_OR_RETURN(const Slice whole, FileOf(std::string(*file)));
    if (!whole.Holds(*begin, *bytes))
      return DataLoss("{}: it has {} bytes; {} should lie at {} with {}", whole.path, whole.bytes, name, *begin,
                      *bytes);
    files_.insert(std::string(*file));
    return Place{std::string(*file), Slice{&disk_, whole.path, *begin, *bytes}};
  }

  absl::StatusOr<Slice> FileOf(const std::string& file) {
    const auto known = open_.find(file);
    if (known != open_.end()) return known->second;
    LS_ASSIGN_OR_RETURN(const Slice whole, WholeFile(disk_, saved_.folder + "/" + file));
    return open_.emplace(file, whole).first->second;
  }

  // state_dict_metadata: {fqn: TensorStorageMetadata | BytesStorageMetadata}
  absl::Status ReadItems() {
    const PickleValue* items = Dict(AttributeOf(graph_, graph_.root, "state_dict_metadata"));
    if (items == nullptr) return Fail("it has no state_dict_metadata");
    std::set<std::string_view> names;
    for (size_t i = 0; i + 1 < items->parts.size(); i += 2) {
      const auto name = TextOf(graph_, items->parts[i]);
      if (!name || !names.insert(*name).second) return Fail(fmt::format("entry {} of state_dict_metadata", i / 2));
      const PickleId item = items->parts[i + 1];
      if (IsA(graph_.At(item), "BytesStorageMetadata")) {
        LS_RETURN_IF_ERROR(AddValue(std::string(*name)));
      } else if (IsA(graph_.At(item), "TensorStorageMetadata")) {
        LS_RETURN_IF_ERROR(AddTensor(std::string(*name), item));
      } else {
        return Fail(fmt::format("{} is neither a tensor nor bytes", *name));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const Place*> PlaceOf(const std::string& name, const Offsets& offsets) const {
    const auto places = places_.find(name);
    if (places != places_.end()) {
      const auto place = places->second.find(offsets);
      if (place != places->second.end()) return &place->second;
    }
    return Fail(fmt::format("the part of {} at [{}] is in no file", name, fmt::join(offsets, ", ")));
  }

  absl::Status AddValue(const std::string& name) {
    LS_ASSIGN_OR_RETURN(const Place* place, PlaceOf(name, {}));
    auto value = ReadTorchFile(place->slice, place->file, name);
    if (absl::IsInvalidArgument(value.status())) {
      saved_.passed_over.push_back(fmt::format("{}: {}", name, Message(value.status())));
      return absl::OkStatus();
    }
    if (!value.ok()) return At(name, value.status());
    if (!value->has_sums) without_sums_.insert(place->slice.path);
    std::move(value->values.begin(), value->values.end(), std::back_inserter(saved_.values));
    std::move(value->tensors.begin(), value->tensors.end(), std::back_inserter(saved_.tensors));
    std::move(value->passed_over.begin(), value->passed_over.end(), std::back_inserter(saved_.passed_over));
    return absl::OkStatus();
  }

  absl::Status AddTensor(const std::string& name, PickleId item) {
    SavedTensor tensor;
    tensor.name = name;
    const PickleId properties = AttributeOf(graph_, item, "properties");
    const auto values = properties == kNoPickle ? std::nullopt : ItemsOf(graph_, graph_.At(properties).state);
    const auto named = values && !values->empty() ? ClassOf(graph_, values->front()) : std::nullopt;
    const Dtype* dtype = named ? DtypeOf(*named) : nullptr;
    if (dtype == nullptr) return Fail(fmt::format("the dtype of {} is not known here", name));
    tensor.dtype = dtype->torch;
    const auto shape = SizesOf(graph_, AttributeOf(graph_, item, "size"));
    if (!shape || !Elements(*shape, dtype->bytes).ok()) return Fail(fmt::format("the size of {} is damaged", name));
    tensor.shape = *shape;
    const auto chunks = ItemsOf(graph_, AttributeOf(graph_, item, "chunks"));
    if (!chunks) return Fail(fmt::format("{} has no chunks", name));
    for (const PickleId chunk : *chunks) {
      LS_ASSIGN_OR_RETURN(Shard shard, ReadChunk(tensor, chunk));
      tensor.shards.push_back(std::move(shard));
    }
    saved_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::StatusOr<Shard> ReadChunk(const SavedTensor& tensor, PickleId chunk) {
    const auto offsets = SizesOf(graph_, AttributeOf(graph_, chunk, "offsets"));
    const auto sizes = SizesOf(graph_, AttributeOf(graph_, chunk, "sizes"));
    if (!offsets || !sizes) return Fail(fmt::format("a chunk of {} is damaged", tensor.name));
    const Box box{*offsets, *sizes};
    if (!Fits(box, tensor.shape))
      return Fail(fmt::format("the chunk at [{}] of {} leaves its shape [{}]", fmt::join(*offsets, ", "), tensor.name,
                              fmt::join(tensor.shape, ", ")));
    LS_ASSIGN_OR_RETURN(const Place* place, PlaceOf(tensor.name, *offsets));
    LS_ASSIGN_OR_RETURN(const TorchFile file, ReadTorchFile(place->slice, place->file, tensor.name));
    if (!file.has_sums) without_sums_.insert(place->slice.path);
    if (file.tensors.size() != 1 || !file.values.empty())
      return DataLoss("{}: at {}, expected one tensor, {}", place->slice.path, place->slice.begin, tensor.name);
    const SavedTensor& found = file.tensors.front();
    if (found.dtype != tensor.dtype || found.shape != box.sizes)
      return DataLoss("{}: {} at {} is {} of shape [{}], expected {} of [{}]", place->slice.path, tensor.name,
                      place->slice.begin, found.dtype, fmt::join(found.shape, ", "), tensor.dtype,
                      fmt::join(box.sizes, ", "));
    Shard shard = found.shards.front();
    shard.box = box;
    shard.rank = RankOf(place->file);
    return shard;
  }

  checkpoint::Disk& disk_;
  const std::string path_;
  std::string pickle_;  // holds the graph's text
  PickleGraph graph_;
  Saved saved_;
  std::map<std::string, std::map<Offsets, Place>> places_;
  std::map<std::string, Slice> open_;
  std::set<std::string> files_;
  std::set<std::string> without_sums_;  // paths
};

}  // namespace

absl::StatusOr<Saved> ReadDcp(checkpoint::Disk& disk, const std::string& folder) { return Reader(disk, folder).Read(); }

}  // namespace lockstep::reshape
