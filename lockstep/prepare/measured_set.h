// The images that a measurement goes through, the same with the same crops in every pass; and the same images with tile
// indices, in a directory that goes with it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/prepare/index_folder.h"
#include "lockstep/prepare/measure.h"
#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

class MeasuredSet {
 public:
  static absl::StatusOr<MeasuredSet> Open(const MeasureOptions& options);
  MeasuredSet(MeasuredSet&&) = default;
  ~MeasuredSet();

  // So many preparations in a pass: each image as often.
  uint64_t size() const { return items_.size() * rounds_; }
  AugmentKey key(uint64_t i) const { return {seed_, i / items_.size(), items_[i % items_.size()], 0}; }
  absl::Status Read(uint64_t i, Buffer& bytes) const { return source_->Read(items_[i % items_.size()], bytes); }
  absl::Status ReadTiled(uint64_t i, Buffer& bytes) const { return tiled_->Read(i % items_.size(), bytes); }

  Json Description() const;
  const IndexCounts& index_counts() const { return index_counts_; }

 private:
  MeasuredSet() = default;
  void LeaveOut(const Limits& limits);
  absl::Status WriteTiled(const Limits& limits);

  std::unique_ptr<Source> source_, tiled_;
  std::vector<uint64_t> items_;
  uint64_t rounds_ = 1, seed_ = 0;
  std::string folder_;
  IndexCounts index_counts_;
  std::map<std::string, uint64_t> left_out_;   // by reason
  double bytes_ = 0, width_ = 0, height_ = 0;  // means
};

}  // namespace lockstep::prepare
