#include "lockstep/prepare/preparer.h"

#include "lockstep/base/check.h"

namespace lockstep::prepare {

void PrepareCounters::Add(const PrepareCounters& other) {
  decoded += other.decoded;
  by_tiles += other.by_tiles;
  damaged += other.damaged;
  bad_index += other.bad_index;
  refused += other.refused;
  too_large += other.too_large;
}

Region Preparer::PlanFor(const Size& size, const Recipe& recipe, const AugmentKey& key) {
  const Placement placement = Place(recipe, size, key);
  resizer_.Plan(placement.scaling());
  return placement.Below(resizer_.needed());
}

absl::Status Preparer::Refused(absl::Status status) {
  ++counters_.refused;
  if (status.code() == absl::StatusCode::kResourceExhausted) ++counters_.too_large;
  return status;
}

absl::Status Preparer::Counted(absl::Status status) {
  const JpegTraits& traits = decoder_.traits();
  counters_.bad_index += traits.bad_index ? 1 : 0;
  if (!status.ok()) return Refused(std::move(status));
  ++counters_.decoded;
  counters_.by_tiles += traits.by_tiles ? 1 : 0;
  counters_.damaged += traits.damaged ? 1 : 0;
  return status;
}

absl::Status Preparer::Prepare(Bytes encoded, const Recipe& recipe, const AugmentKey& key, std::span<uint8_t> out) {
  LS_CHECK(out.size() == recipe.bytes(), "{} {}", out.size(), recipe.bytes());
  const absl::StatusOr<ImageHead> head = ReadImageHead(encoded, limits_);
  if (!head.ok()) return Refused(head.status());
  if (absl::Status fits = CheckSize(recipe, head->size); !fits.ok()) return Refused(std::move(fits));
  const Region part = PlanFor(head->size, recipe, key);
  resizer_.Into(out.data());
  return Counted(decoder_.Decode(encoded, *head, part, resizer_));
}

absl::Status Preparer::Decode(Bytes encoded, Image& whole) {
  const absl::StatusOr<ImageHead> head = ReadImageHead(encoded, limits_);
  if (!head.ok()) return Refused(head.status());
  return Counted(decoder_.Decode(encoded, *head, Whole(head->size), whole));
}

absl::StatusOr<DecodeMemory> Preparer::MemoryFor(Bytes encoded) {
  const absl::StatusOr<ImageHead> head = ReadImageHead(encoded, limits_);
  if (!head.ok()) return Refused(head.status());
  return MemoryToDecode(*head);
}

void Preparer::Augment(const ImageView& whole, const Recipe& recipe, const AugmentKey& key, std::span<uint8_t> out) {
  LS_CHECK(out.size() == recipe.bytes(), "{} {}", out.size(), recipe.bytes());
  resizer_.Run(whole.Crop(PlanFor(whole.size, recipe, key)), out.data());
}

}  // namespace lockstep::prepare
