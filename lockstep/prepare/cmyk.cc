#include "lockstep/prepare/cmyk.h"

#include <algorithm>

namespace lockstep::prepare {
namespace {

// a * b / 255, rounded.
int Share(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

}  // namespace

// With C = 255 - c and so on (inverted): R = (255 - K) - C * (255 - K) / 255, where 255 - K is the stored k.
void CmykToRgb(uint8_t* pixels, size_t count) {
  const uint8_t* in = pixels;
  uint8_t* out = pixels;
  for (size_t i = 0; i < count; ++i, in += 4, out += 3) {
    const int white = in[3];
    for (int k = 0; k < 3; ++k) out[k] = static_cast<uint8_t>(std::clamp(white - Share(255 - in[k], white), 0, 255));
  }
}

}  // namespace lockstep::prepare
