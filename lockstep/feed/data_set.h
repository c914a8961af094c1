// The data set that a service offers: a source of items (prepare/source.h), which of them a job means by its `where`,
// and the makers that turn them into what lies in a slot. Immutable after Open; any number of threads.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/feed/maker.h"
#include "lockstep/feed/request.h"
#include "lockstep/prepare/decode.h"
#include "lockstep/prepare/source.h"
#include "lockstep/sampling/item_set.h"

namespace lockstep::feed {

class DataSet {
 public:
  static absl::StatusOr<DataSet> Open(const std::string& name, const prepare::SourceSpec& spec,
                                      const prepare::Limits& limits = {});

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }  // without what follows "?" in a URL, which may be a secret
  const prepare::Source& source() const { return *source_; }
  uint64_t items() const { return source_->size(); }
  void Stop() const { source_->Stop(); }  // reads of remote files fail from now on
  int64_t label(uint64_t item) const { return source_->LabelOf(item); }
  std::unique_ptr<Maker> NewMaker() const;
  // What a job gets of each item: images and sounds by its recipe, all else as it is.
  absl::Status CheckRecipe(const prepare::Recipe& recipe) const;
  uint64_t ItemBytes(const prepare::Recipe& recipe) const;
  std::vector<int64_t> ItemShape(const prepare::Recipe& recipe) const;
  std::string ItemType(const prepare::Recipe& recipe) const;  // as NumPy writes it
  absl::StatusOr<sampling::ItemSet> SetOf(const Subset& where) const;

 private:
  DataSet(std::string name, std::string path, std::unique_ptr<prepare::Source> source, const prepare::Limits& limits);
  absl::StatusOr<std::set<int64_t>> WantedLabels(const Subset& where) const;
  prepare::ItemKind kind() const { return source_->format().kind; }
  bool is_cut() const { return kind() == prepare::ItemKind::kImage || kind() == prepare::ItemKind::kSound; }

  std::string name_, path_;
  std::unique_ptr<prepare::Source> source_;
  prepare::Limits limits_;  // of images
};

// Of the ids as a set; they need not be sorted.
absl::StatusOr<sampling::ItemSet> SetFromIds(std::vector<uint64_t> ids, uint64_t items);

}  // namespace lockstep::feed
