// CMYK as RGB, in place, as PIL's convert("RGB") has it. JPEGs hold CMYK inverted (Adobe's convention, which PIL
// assumes).
#pragma once

#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

// Of n inverted CMYK pixels, n RGB pixels, at the begin of the buffer.
void CmykToRgb(Buffer& pixels);

}  // namespace lockstep::prepare
