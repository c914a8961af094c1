// What becomes of a rectangle of pixels: it is scaled, and a part of that is kept.
#pragma once

#include "lockstep/prepare/image.h"

namespace lockstep::prepare {

struct Scaling {
  Size source, scaled;
  Region kept;        // of what is scaled
  bool flip = false;  // mirrors what is kept
};

}  // namespace lockstep::prepare
