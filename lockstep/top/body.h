// The middle of a frame, one function per screen: appends at most `room` lines. Pure; only frame.cc uses this.
#pragma once

#include "lockstep/top/frame.h"

namespace lockstep::top {

struct Body {
  const Known& known;
  const Look& look;
  size_t room;
  size_t columns;
  Frame& frame;
};

void AddRanks(Body body);
void AddIncidents(Body body);
void AddStacks(Body body);
void AddHelp(Body body);

}  // namespace lockstep::top
