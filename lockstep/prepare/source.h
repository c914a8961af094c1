// A data set: items that are read by number, from any thread. What an item is, `format()` says: the bytes of an image
// file, an array of one shape, or a window of tokens. Opening reads names and places, never the items; no file stays
// open (a set may have more shards than a process may have files), nothing is mapped: a file that shrinks or vanishes
// is an error of the item that was to be read, with its path, and nothing else.
//
//   LS_ASSIGN_OR_RETURN(std::unique_ptr<Source> source, OpenSource({.path = "/data/train"}));
//   Buffer bytes;
//   LS_RETURN_IF_ERROR(source->Read(17, bytes));
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

enum class ItemKind : uint8_t { kImage, kArray, kTokens };

struct ItemFormat {
  ItemKind kind = ItemKind::kImage;
  std::string dtype;           // of arrays and tokens, as NumPy writes it: "<f4", "|u1", "<u2"
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
  virtual Item item(uint64_t index) const = 0;
  // Thread-safe. The error names the path (and the item within it) and what is wrong.
  virtual absl::Status Read(uint64_t index, Buffer& bytes) const = 0;

  const ItemFormat& format() const { return format_; }
  const std::vector<std::string>& classes() const { return classes_; }
  // What was left out when it was opened, by name: {"files_of_other_kinds", 3}.
  const std::vector<std::pair<std::string, uint64_t>>& counters() const { return counters_; }

 protected:
  ItemFormat format_;
  std::vector<std::string> classes_;
  std::vector<std::pair<std::string, uint64_t>> counters_;
};

struct SourceSpec {
  std::string path =
      {};  // a directory of images, a .tar or a directory of them, .npy, .safetensors, .mdb, .bin/.tokens
  std::string tensor = {};       // of a safetensors file with several
  int token_bytes = 2;           // of a token file: 2 or 4
  uint64_t tokens_per_item = 0;  // likewise; an item holds one more, the target of its last token
};
absl::StatusOr<std::unique_ptr<Source>> OpenSource(const SourceSpec& spec);

}  // namespace lockstep::prepare
