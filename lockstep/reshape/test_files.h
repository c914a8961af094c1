// Test support: pickles, archives and checkpoints as torch writes them, made by hand so that each can be wrong in one
// place.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/memory_disk.h"

namespace lockstep::reshape::testing {

template <typename Number>
std::string Bytes(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

// ---- pickles of protocol 2 ----

inline std::string Text(const std::string& text) { return "X" + Bytes(static_cast<uint32_t>(text.size())) + text; }
inline std::string Int(int64_t number) { return "\x8a\x08" + Bytes(number); }
inline std::string Joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}
inline std::string Tuple(const std::vector<std::string>& parts) { return "(" + Joined(parts) + "t"; }
inline std::string List(const std::vector<std::string>& parts) { return "](" + Joined(parts) + "e"; }
inline std::string Dict(const std::vector<std::string>& keys_and_values) {
  return "}(" + Joined(keys_and_values) + "u";
}
inline std::string Class(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string Call(const std::string& what, const std::string& args) { return what + args + "R"; }
// An object of a class with this state.
inline std::string Made(const std::string& what, const std::string& state) { return what + ")\x81" + state + "b"; }
inline std::string Pickle(const std::string& value) { return "\x80\x02" + value + "."; }

inline std::string Sizes(const std::vector<int64_t>& sizes) {
  std::vector<std::string> parts;
  for (const int64_t size : sizes) parts.push_back(Int(size));
  return Tuple(parts);
}
inline std::string Size(const std::vector<int64_t>& sizes) {
  return Call(Class("torch", "Size"), Tuple({Sizes(sizes)}));
}
inline std::string Storage(const std::string& kind, const std::string& key, int64_t elements) {
  return Tuple({Text("storage"), Class("torch", kind), Text(key), Text("cpu"), Int(elements)}) + "Q";
}
inline std::string Tensor(const std::string& storage, int64_t first, const std::vector<int64_t>& sizes,
                          const std::vector<int64_t>& strides) {
  return Call(Class("torch._utils", "_rebuild_tensor_v2"),
              Tuple({storage, Int(first), Sizes(sizes), Sizes(strides), "\x89",
                     Call(Class("collections", "OrderedDict"), ")")}));
}

// ---- archives ----

struct Entry {
  std::string name, content;
};

inline std::string Zip(const std::vector<Entry>& entries) {
  std::string zip, directory;
  for (const auto& [name, content] : entries) {
    const auto crc = static_cast<uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size())));
    const auto bytes = static_cast<uint32_t>(content.size()), begin = static_cast<uint32_t>(zip.size());
    const std::string sums = Bytes(crc) + Bytes(bytes) + Bytes(bytes) + Bytes(static_cast<uint16_t>(name.size()));
    const std::string method(8, '\0');  // flags, method, time, date
    zip += Bytes(uint32_t{0x04034b50}) + std::string(2, '\0') + method + sums + std::string(2, '\0') + name + content;
    directory += Bytes(uint32_t{0x02014b50}) + std::string(4, '\0') + method + sums + std::string(12, '\0') +
                 Bytes(begin) + name;
  }
  const auto count = static_cast<uint16_t>(entries.size());
  return zip + directory + Bytes(uint32_t{0x06054b50}) + std::string(4, '\0') + Bytes(count) + Bytes(count) +
         Bytes(static_cast<uint32_t>(directory.size())) + Bytes(static_cast<uint32_t>(zip.size())) +
         std::string(2, '\0');
}

// As with torch.serialization.set_crc32_options(False).
inline std::string WithoutSums(std::string zip) {
  for (size_t at = zip.find("PK\x01\x02"); at != std::string::npos; at = zip.find("PK\x01\x02", at + 1))
    zip.replace(at + 16, 4, 4, '\0');
  return zip;
}

// What torch.save makes of one pickle and its storages, whose keys are "0", "1", ...
inline std::string Archive(const std::string& pickle, const std::vector<std::string>& storages) {
  std::vector<Entry> entries = {{"archive/data.pkl", pickle}};
  for (size_t i = 0; i < storages.size(); ++i) entries.push_back({"archive/data/" + std::to_string(i), storages[i]});
  return Zip(entries);
}

template <typename Element>
std::string Storing(const std::vector<Element>& elements) {
  return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)};
}

// A file of one float32 tensor in C order.
inline std::string Floats(const std::vector<int64_t>& sizes, const std::vector<float>& elements) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  const auto count = static_cast<int64_t>(elements.size());
  return Archive(Pickle(Tensor(Storage("FloatStorage", "0", count), 0, sizes, strides)), {Storing(elements)});
}

// ---- folders of torch.distributed.checkpoint ----

constexpr char kMetadataModule[] = "torch.distributed.checkpoint.metadata";

struct Chunk {
  std::vector<int64_t> offsets, sizes;
};

inline std::string Index(const std::string& name, const std::string& offset) {
  return Made(Class(kMetadataModule, "MetadataIndex"),
              Dict({Text("fqn"), Text(name), Text("offset"), offset, Text("index"), "N"}));
}
inline std::string Place(const std::string& file, int64_t offset, int64_t bytes) {
  return Made(Class("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
              Dict({Text("relative_path"), Text(file), Text("offset"), Int(offset), Text("length"), Int(bytes)}));
}
inline std::string TensorMetadata(const std::string& dtype, const std::vector<int64_t>& size,
                                  const std::vector<Chunk>& chunks) {
  std::vector<std::string> all;
  for (const Chunk& chunk : chunks)
    all.push_back(Made(Class(kMetadataModule, "ChunkStorageMetadata"),
                       Dict({Text("offsets"), Size(chunk.offsets), Text("sizes"), Size(chunk.sizes)})));
  const std::string layout = Call(Class("torch.serialization", "_get_layout"), Tuple({Text("torch.strided")}));
  const std::string format = Call(Class(kMetadataModule, "_MEM_FORMAT_ENCODING"), Tuple({Int(0)}));
  const std::string properties =
      Made(Class(kMetadataModule, "TensorProperties"), Tuple({Class("torch", dtype), layout, "\x89", format, "\x89"}));
  return Made(Class(kMetadataModule, "TensorStorageMetadata"),
              Dict({Text("properties"), properties, Text("size"), Size(size), Text("chunks"), List(all)}));
}
inline std::string BytesMetadata() { return Class(kMetadataModule, "BytesStorageMetadata") + ")\x81"; }
inline std::string Metadata(const std::vector<std::string>& items, const std::vector<std::string>& places) {
  return Pickle(Made(Class(kMetadataModule, "Metadata"),
                     Dict({Text("state_dict_metadata"), Dict(items), Text("planner_data"), "N", Text("storage_data"),
                           Dict(places), Text("storage_meta"), "N"})));
}

inline void Put(checkpoint::MemoryDisk& disk, const std::string& path, const std::string& content) {
  auto file = disk.Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(std::as_bytes(std::span(content))).ok());
}

// /dcp: a weight of [4, 2] by two ranks, two rows each, 0 to 7, and the value step = 9.
inline void PutDcp(checkpoint::MemoryDisk& disk) {
  const std::string first = Floats({2, 2}, {0, 1, 2, 3}), second = Floats({2, 2}, {4, 5, 6, 7});
  const std::string value = Archive(Pickle(Int(9)), {});
  const auto bytes = [](const std::string& text) { return static_cast<int64_t>(text.size()); };
  ASSERT_TRUE(disk.MakeDirectory("/dcp").ok());
  Put(disk, "/dcp/__0_0.distcp", value + first);
  Put(disk, "/dcp/__1_0.distcp", second);
  Put(disk, "/dcp/.metadata",
      Metadata({Text("weight"), TensorMetadata("float32", {4, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}}), Text("step"),
                BytesMetadata()},
               {Index("weight", Size({0, 0})), Place("__0_0.distcp", bytes(value), bytes(first)),
                Index("weight", Size({2, 0})), Place("__1_0.distcp", 0, bytes(second)), Index("step", "N"),
                Place("__0_0.distcp", 0, bytes(value))}));
}

}  // namespace lockstep::reshape::testing
