// Bytes that are reused from item to item: growing neither zeroes nor keeps what was there. Behind the end lie kSlack
// bytes that may be read (not written), so that wide loads need no special case at the last pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace lockstep::prepare {

using Bytes = std::span<const uint8_t>;

class Buffer {
 public:
  static constexpr size_t kSlack = 64;

  void Resize(size_t size) {
    if (size > capacity_ || data_ == nullptr) {
      data_ = std::make_unique_for_overwrite<uint8_t[]>(size + kSlack);
      std::memset(data_.get() + size, 0, kSlack);
      capacity_ = size;
    }
    size_ = size;
  }
  void Assign(Bytes bytes) {
    Resize(bytes.size());
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  // Lets go of its memory if that is more than so many bytes.
  void Forget(size_t kept) {
    if (capacity_ > kept) *this = {};
  }
  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  Bytes bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace lockstep::prepare
