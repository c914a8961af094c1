#include "lockstep/prepare/resize.h"

#include "lockstep/base/check.h"

namespace lockstep::prepare {

void Resizer::Plan(const Scaling& scaling) {
  maker_.Make({scaling.source.width, scaling.scaled.width, scaling.kept.x, scaling.kept.width, scaling.flip},
              TapsAcross, across_);
  maker_.Make({scaling.source.height, scaling.scaled.height, scaling.kept.y, scaling.kept.height, false}, TapsDown,
              down_);
}

void Resizer::Run(const ImageView& view, uint8_t* out) {
  LS_CHECK(view.size.width == across_.size && view.size.height == down_.size, "{} x {} for {} x {}", view.size.width,
           view.size.height, across_.size, down_.size);
  const int width = across_.count();
  const size_t stride = FourByteStride(width);
  // Of an image lower than its taps, rows of weight 0 lie behind the last.
  between_.Resize(stride * static_cast<size_t>(down_.size + kSpareRows));
  kernels_.across({view.rgb, view.stride, down_.size}, across_, between_.data());
  for (int y = 0; y < down_.count(); ++y, out += static_cast<size_t>(width) * 3) {
    const auto first = static_cast<size_t>(down_.first[static_cast<size_t>(y)]);
    kernels_.down(between_.data() + first * stride, {down_.Of(y), down_.taps, down_.bits}, width, out);
  }
}

}  // namespace lockstep::prepare
