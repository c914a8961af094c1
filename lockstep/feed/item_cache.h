// Items in memory, as pixels or as the bytes of their files, within one budget that holds at every moment: room is
// reserved before a decoder allocates. Jobs that share a data set need an item at known times, so what is needed last
// goes first (Belady's rule, over kSampled entries in turn), of what is needed equally late the form that holds more
// than its quota; but not what somebody is reading.
// Thread-compatible: the owner's lock.
//
//   if (cache.Reserve(bytes, distance)) ... decode ...; cache.Put(item, Form::kDecoded, {image, nullptr}, bytes, reserved);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/prepare/image.h"

namespace lockstep::feed {

enum class Form : uint8_t { kDecoded, kEncoded };
inline constexpr size_t kForms = 2;

// Shared: a thread that reads it holds it, and whoever evicts sees that by the count.
struct Content {
  std::shared_ptr<const prepare::Image> image;
  std::shared_ptr<const prepare::Buffer> file;
};

class ItemCache {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};
  // In how many items some job needs this one next.
  using Distance = std::function<uint64_t(uint64_t item)>;

  ItemCache(uint64_t budget, Distance distance) : budget_(budget), quotas_{budget, 0}, distance_(std::move(distance)) {}

  // Nulls where it is not there.
  Content Find(uint64_t item, Form form);
  // Makes room, of what is needed later than `distance` from now, or equally late and beyond its form's quota. False:
  // there is none.
  bool Reserve(uint64_t bytes, uint64_t distance);
  // Makes room of whatever nobody is reading, needed or not.
  bool ReserveOfAll(uint64_t bytes);
  void Unreserve(uint64_t bytes) { reserved_ -= bytes; }
  // Takes over `reserved` bytes of a reservation; what it was more than `bytes` is given back.
  void Put(uint64_t item, Form form, Content content, uint64_t bytes, uint64_t reserved);
  void Drop(uint64_t item, Form form);

  // How many bytes a form is to have when items are needed equally late; all of the budget for pixels until told.
  void SetQuota(Form form, uint64_t bytes) { quotas_.at(static_cast<size_t>(form)) = bytes; }
  uint64_t quota(Form form) const { return quotas_.at(static_cast<size_t>(form)); }
  bool HasQuota(Form form, uint64_t bytes) const { return totals(form).bytes + bytes <= quota(form); }

  struct Totals {
    uint64_t items = 0, bytes = 0, hits = 0, evictions = 0;
  };
  const Totals& totals(Form form) const { return totals_.at(static_cast<size_t>(form)); }
  uint64_t used() const { return used_ + reserved_; }
  uint64_t peak() const { return peak_; }
  uint64_t budget() const { return budget_; }
  uint64_t refused() const { return refused_; }  // reservations

 private:
  static constexpr size_t kSampled = 16;
  struct Entry {
    uint64_t item;
    Form form;
    Content content;
    uint64_t bytes;
  };
  static uint64_t Key(uint64_t item, Form form) { return item * kForms + static_cast<uint64_t>(form); }
  bool EvictOne(std::pair<uint64_t, bool> than);
  bool EvictAny();
  template <typename EvictNext>
  bool MakeRoom(uint64_t bytes, const EvictNext& evict);
  void Evict(size_t index);
  void Erase(size_t index);

  uint64_t budget_, used_ = 0, reserved_ = 0, peak_ = 0, refused_ = 0;
  std::array<uint64_t, kForms> quotas_;
  Distance distance_;
  std::vector<Entry> entries_;
  std::unordered_map<uint64_t, size_t> index_;  // by Key, into entries_
  size_t hand_ = 0;
  std::array<Totals, kForms> totals_;
};

}  // namespace lockstep::feed
