// A data set: items that are read by number, from any thread. What an item is, `format()` says: the bytes of an image
// or a sound file, an array of one shape, or a window of tokens. Opening reads names and places, never the items; no
// file stays open (a set may have more shards than a process may have files), nothing is mapped: a file that vanishes,
// or one of several items that has changed since it was opened, is an error of the item that was to be read, with its
// path, and nothing else.
//
//   LS_ASSIGN_OR_RETURN(std::unique_ptr<Source> source, OpenSource({.path = "/data/train"}));
//   Buffer bytes;
//   LS_RETURN_IF_ERROR(source->Read(17, bytes));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/prepare/buffer.h"
#include "lockstep/prepare/data_file.h"

namespace lockstep::prepare {

enum class ItemKind : uint8_t { kImage, kSound, kArray, kTokens };

struct ItemFormat {
  ItemKind kind = ItemKind::kImage;
  std::string dtype;           // of arrays and tokens, as NumPy writes it: "<f4", "|u1", "<u2"; or "bfloat16"
  std::vector<int64_t> shape;  // of one item, likewise
  uint64_t bytes = 0;          // of one item, likewise
  bool operator==(const ItemFormat&) const = default;
};

struct Item {
  std::string key;     // unique within the set, the same wherever the set lies
  int64_t label = -1;  // the number of its class; -1: none
};

class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() const = 0;
  virtual std::string KeyOf(uint64_t index) const = 0;
  virtual int64_t LabelOf(uint64_t /*index*/) const { return -1; }
  Item item(uint64_t index) const { return {KeyOf(index), LabelOf(index)}; }
  // Memory that Read takes; 0: not known before. Thread-safe.
  virtual uint64_t BytesOf(uint64_t /*index*/) const { return 0; }
  // Thread-safe. The error names the path (and the item within it) and what is wrong.
  virtual absl::Status Read(uint64_t index, Buffer& bytes) const = 0;

  const ItemFormat& format() const { return format_; }
  const std::vector<std::string>& classes() const { return classes_; }
  // Reads of remote files, those under way too, fail from now on.
  void Stop() const {
    if (files_ != nullptr) files_->Stop();
  }
  void Keep(std::unique_ptr<Files> files) { files_ = std::move(files); }

  // What was left out when it was opened, or is not as it should be, by name: {"files_of_other_kinds", 3}.
  const std::vector<std::pair<std::string, uint64_t>>& counters() const { return counters_; }

 protected:
  std::unique_ptr<Files> files_;  // that opened what it reads
  ItemFormat format_;
  std::vector<std::string> classes_;
  std::vector<std::pair<std::string, uint64_t>> counters_;
};

enum class PackRule : uint8_t { kNone, kBestFit, kChunk };  // pack.h

struct SourceSpec {
  // A directory of images or sounds, a .tar or several (a directory of them, braces, a list: shard_list.h), .npy,
  // .safetensors, .mdb, .bin or .tokens. A file may be a URL.
  std::string path = {};
  std::string tensor = {};          // of a safetensors file with several
  int token_bytes = 2;              // of a token file: 2 or 4
  uint64_t tokens_per_item = 0;     // likewise; an item holds one more, the target of its last token
  PackRule pack = PackRule::kNone;  // of a token file: documents in rows; one of the two below says where they end
  std::optional<uint64_t> end_token = {};  // the last of each document
  std::string documents = {};              // a .npy of whole numbers of 8 bytes: where each begins, or ends
  Seconds patience{20};                    // with a server that doesn't answer
};
absl::StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec);

}  // namespace lockstep::prepare
