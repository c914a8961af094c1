#include "lockstep/prepare/resize.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::prepare {

void Resizer::Plan(const Scaling& scaling) {
  maker_.Make({scaling.source.width, scaling.scaled.width, scaling.kept.x, scaling.kept.width, scaling.flip},
              TapsAcross, across_);
  maker_.Make({scaling.source.height, scaling.scaled.height, scaling.kept.y, scaling.kept.height, false}, TapsDown,
              down_);
}

void Resizer::Begin() {
  constexpr int kLeastRoom = 64;  // rows: as many as a second-level cache holds easily
  written_ = first_ = rows_ = 0;
  room_ = std::min(down_.size, std::max(2 * down_.taps, kLeastRoom));
  // Of an image lower than its taps, rows of weight 0 lie behind the last.
  between_.Resize(FourByteStride(across_.count()) * static_cast<size_t>(room_ + kSpareRows));
}

void Resizer::Take(const ImageView& rows) {
  LS_CHECK(rows.size.width == across_.size && first_ + rows_ + rows.size.height <= down_.size, "{} + {} + {} of {}",
           first_, rows_, rows.size.height, down_.size);
  for (int taken = 0; taken < rows.size.height;) {
    const int count = std::min(rows.size.height - taken, room_ - rows_);
    kernels_.across({rows.Row(taken), rows.stride, count}, across_,
                    between_.data() + FourByteStride(across_.count()) * static_cast<size_t>(rows_));
    rows_ += count;
    taken += count;
    Write();
    DropRows();
  }
}

void Resizer::Write() {
  const int width = across_.count();
  const size_t stride = FourByteStride(width);
  for (; written_ < down_.count(); ++written_) {
    const int first = down_.first[static_cast<size_t>(written_)];
    if (std::min(first + down_.taps, down_.size) > first_ + rows_) return;
    kernels_.down(between_.data() + static_cast<size_t>(first - first_) * stride,
                  {down_.Of(written_), down_.taps, down_.bits}, width,
                  out_ + static_cast<size_t>(written_) * static_cast<size_t>(width) * 3);
  }
}

void Resizer::DropRows() {
  if (rows_ < room_ || written_ == down_.count()) return;
  const size_t stride = FourByteStride(across_.count());
  const int next = std::min(down_.first[static_cast<size_t>(written_)], first_ + rows_);
  const int left = first_ + rows_ - next;
  std::memmove(between_.data(), between_.data() + static_cast<size_t>(next - first_) * stride,
               static_cast<size_t>(left) * stride);
  first_ = next;
  rows_ = left;
}

void Resizer::Run(const ImageView& view, uint8_t* out) {
  LS_CHECK(view.size.height == down_.size, "{} {}", view.size.height, down_.size);
  Into(out);
  Begin();
  Take(view);
}

}  // namespace lockstep::prepare
