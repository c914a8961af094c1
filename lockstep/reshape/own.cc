#include "lockstep/reshape/own.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/reshape/dtype.h"
#include "lockstep/reshape/place.h"
#include "lockstep/reshape/slice.h"
#include "lockstep/trace/pickle.h"

namespace lockstep::reshape {
namespace {

using checkpoint::Head;
using checkpoint::ManifestFile;
using checkpoint::Tensor;

absl::StatusOr<Head> ReadHead(const Slice& file) {
  LS_ASSIGN_OR_RETURN(const std::string first, file.Text(0, std::min<uint64_t>(file.bytes, 8)));
  LS_ASSIGN_OR_RETURN(const uint64_t bytes, checkpoint::HeadBytes(std::as_bytes(std::span(first)), file.bytes));
  LS_ASSIGN_OR_RETURN(const std::string text, file.Text(0, bytes));
  return checkpoint::ParseHead(std::as_bytes(std::span(text)), file.bytes);
}

// The second part of a slot's meta: a pickle or JSON.
std::string_view LayoutOf(const std::vector<std::byte>& meta) {
  std::string_view text(reinterpret_cast<const char*>(meta.data()), meta.size());
  std::string_view part;
  for (int i = 0; i < 2; ++i) {
    uint64_t bytes = 0;
    if (text.size() < sizeof(bytes)) return "";
    std::memcpy(&bytes, text.data(), sizeof(bytes));
    text.remove_prefix(sizeof(bytes));
    if (bytes > text.size()) return "";
    part = text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  return part;
}

// What a slot notes of each of its tensors.
struct Noted {
  std::string name;
  Json place;
};

absl::StatusOr<std::vector<Noted>> ReadLayout(std::string_view text, size_t tensors) {
  std::vector<Noted> noted;
  LS_ASSIGN_OR_RETURN(const Json layout,
                      text.starts_with('{') ? absl::StatusOr<Json>(ParseJson(text)) : trace::ReadPickle(text));
  try {
    if (layout.is_array()) {  // (holder, number, (name, dtype, shape, strides, place, device, size))
      for (const Json& entry : layout) noted.push_back({entry.at(2).at(0).get<std::string>(), entry.at(2).at(4)});
    } else {
      for (const Json& entry : layout.at("tensors"))
        noted.push_back({entry.at("name").get<std::string>(), entry.at("place")});
    }
  } catch (const Json::exception& error) {
    return InvalidArgument("the layout of its slot: {}", error.what());
  }
  if (noted.size() != tensors) return InvalidArgument("its slot notes {} of {} tensors", noted.size(), tensors);
  return noted;
}

class Reader {
 public:
  Reader(checkpoint::Disk& disk, std::string folder) : disk_(disk) {
    saved_.kind = "lockstep";
    saved_.folder = std::move(folder);
  }

  absl::StatusOr<Saved> Read(const checkpoint::Manifest& manifest) {
    saved_.step = manifest.point.step.value();
    saved_.world_size = static_cast<int>(manifest.files.size());
    for (size_t rank = 0; rank < manifest.files.size(); ++rank) {
      const absl::Status status = AddRank(static_cast<int>(rank), manifest.files[rank]);
      if (!status.ok()) return At(saved_.folder + "/" + manifest.files[rank].name, status);
    }
    return std::move(saved_);
  }

 private:
  absl::Status AddRank(int rank, const ManifestFile& file) {
    LS_ASSIGN_OR_RETURN(const Slice whole, WholeFile(disk_, saved_.folder + "/" + file.name));
    LS_ASSIGN_OR_RETURN(const Head head, ReadHead(whole));
    LS_ASSIGN_OR_RETURN(const std::vector<Tensor> table, checkpoint::ReadTable(head.meta, file.slot_bytes));
    std::map<std::string_view, uint64_t> places;
    for (const Tensor& tensor : head.tensors) places[tensor.name] = head.data_begin + tensor.file_offset;
    const auto noted = ReadLayout(LayoutOf(head.meta), table.size());
    if (!noted.ok())
      saved_.passed_over.push_back(fmt::format("rank {}: the places of its shards: {}", rank, Message(noted.status())));
    for (size_t i = 0; i < table.size(); ++i) {
      const auto at = places.find(table[i].name);
      if (at == places.end()) return DataLoss("tensor {} is not in the file", table[i].name);
      const Noted plain{table[i].name, {}};
      LS_RETURN_IF_ERROR(AddTensor(rank, file.name, at->second, table[i], noted.ok() ? (*noted)[i] : plain));
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(int rank, const std::string& file, uint64_t at, const Tensor& tensor, const Noted& noted) {
    LS_ASSIGN_OR_RETURN(SavedTensor one, Real(tensor));
    Shard shard{.box = WholeOf(one.shape), .strides = one.shards.front().strides, .file = file, .at = at, .rank = rank};
    shard.storage_at = at;
    shard.storage_bytes = tensor.bytes;
    if (!noted.place.is_null()) {
      one.name = noted.name;  // as its other shards; that of a whole tensor is its own in the table alone
      const auto placed = PlaceOf(noted.place, one.shape, rank, saved_.world_size);
      if (!placed.ok()) return At(one.name, placed.status());
      one.shape = placed->shape;
      shard.box = placed->box;
    }
    return Join(std::move(one), std::move(shard), tensor.name);
  }

  // What the tensor is in torch, with its strides in its one shard.
  static absl::StatusOr<SavedTensor> Real(const Tensor& tensor) {
    SavedTensor real{tensor.name, "", tensor.shape, {Shard{}}};
    const Dtype* dtype = DtypeOf(tensor.dtype);
    Json strides;
    if (!tensor.torch.empty()) {
      const Json torch = ParseJson(tensor.torch);
      try {
        dtype = DtypeOf(torch.at("dtype").get<std::string>());
        torch.at("shape").get_to(real.shape);
        strides = torch.at("strides");
        if (!strides.is_null()) strides.get_to(real.shards.front().strides);
      } catch (const Json::exception& error) {
        return DataLoss("tensor {}: {}", tensor.name, error.what());
      }
    }
    if (dtype == nullptr) return InvalidArgument("tensor {} has a dtype that is not known here", tensor.name);
    LS_ASSIGN_OR_RETURN(const uint64_t elements, Elements(real.shape, dtype->bytes));
    if (elements * dtype->bytes != tensor.bytes) return DataLoss("tensor {} has other sizes than it says", tensor.name);
    real.dtype = dtype->torch;
    if (strides.is_null()) real.shards.front().strides = DenseStrides(real.shape);
    return CheckStrides(real, elements);
  }
  static absl::StatusOr<SavedTensor> CheckStrides(const SavedTensor& tensor, uint64_t elements) {
    const std::vector<uint64_t>& strides = tensor.shards.front().strides;
    uint64_t last = 0;
    bool fits = strides.size() == tensor.shape.size();
    for (size_t d = 0; fits && d < strides.size(); ++d) {
      uint64_t reach = 0;
      fits = tensor.shape[d] == 0 || (!__builtin_mul_overflow(tensor.shape[d] - 1, strides[d], &reach) &&
                                      !__builtin_add_overflow(last, reach, &last));
    }
    if (!fits || (elements != 0 && last >= elements))
      return DataLoss("tensor {} has strides that leave it", tensor.name);
    return tensor;
  }

  // Ranks that have a tensor of another shape or dtype under one name have their own: "name@3".
  absl::Status Join(SavedTensor one, Shard shard, const std::string& unique_name) {
    const auto found = index_.find(one.name);
    if (found != index_.end()) {
      SavedTensor& other = saved_.tensors[found->second];
      const bool again =
          !other.shards.empty() && other.shards.back().rank == shard.rank && other.shards.back().box == shard.box;
      if (other.dtype == one.dtype && other.shape == one.shape && !again) {
        other.shards.push_back(std::move(shard));
        return absl::OkStatus();
      }
      one.name = unique_name;
      do one.name += fmt::format("@{}", shard.rank);
      while (index_.contains(one.name));  // which a script's own name may be
    }
    index_.emplace(one.name, saved_.tensors.size());
    one.shards = {std::move(shard)};
    saved_.tensors.push_back(std::move(one));
    return absl::OkStatus();
  }

  checkpoint::Disk& disk_;
  Saved saved_;
  std::map<std::string, size_t> index_;
};

}  // namespace

absl::StatusOr<Saved> ReadOwn(checkpoint::Disk& disk, const std::string& folder) {
  LS_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, checkpoint::ReadManifestIn(disk, folder));
  return Reader(disk, folder).Read(manifest);
}

}  // namespace lockstep::reshape
