// A checkpoint's name, as the control plane and as the part `checkpoint` have it.
#pragma once

#include "lockstep/checkpoint/restore.h"
#include "lockstep/control/events.h"

namespace lockstep::agent {

inline checkpoint::Point ToPoint(const control::CheckpointId& id) { return {id.epoch, StepId(id.step)}; }
inline control::CheckpointId ToId(const checkpoint::Point& point) { return {point.epoch, point.step.value()}; }

}  // namespace lockstep::agent
