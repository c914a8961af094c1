// CMYK as RGB, in place, as PIL's convert("RGB") has it. JPEGs hold CMYK inverted (Adobe's convention, which PIL
// assumes).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::prepare {

// Of `count` inverted CMYK pixels, as many RGB pixels, at the same place.
void CmykToRgb(uint8_t* pixels, size_t count);

}  // namespace lockstep::prepare
