// Frames without what differs between processes that are at the same place: addresses, offsets, arguments, object and
// thread ids, where packages are installed, and line numbers unless they are asked for.
// Pure. Cost: linear in the text of a frame.
//
//   NormalFrame("/opt/lib/python3.11/site-packages/torch/_tensor.py:488 in backward")  // "torch/_tensor.py in
//   backward" NormalFrame("c10d::Work::wait(long) (libtorch_cpu.so+0x41)")                       // "c10d::Work::wait
//   (libtorch_cpu.so)"
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/cluster/layout.h"

namespace lockstep::detect {

enum class Lines { kDrop, kKeep };

// Of Python as faulthandler, py-spy and our files have it; native as elfutils, gdb and py-spy have it.
std::string NormalFrame(std::string_view frame, Lines lines = Lines::kDrop);

// Written to `key`: the frame without its numbers and addresses, else as it was read. Frames of one key have one normal
// frame, without lines; there are few keys where machines and moments differ. Cost: a tenth of NormalFrame's.
void MakeFrameKey(std::string_view frame, std::string& key);

// What follows is asked of normal frames.
std::string_view FunctionOf(std::string_view frame);
bool IsOfTorch(std::string_view frame);  // Python of torch

// For whom a process waits in communication, as far as its frames tell.
enum class Partners { kUnknown, kGroup, kBefore, kBehind, kNeighbours };
// A Python call that ends with the help of other ranks. None: it is no such call.
std::optional<Partners> CommunicationCall(std::string_view frame);
// The dimension whose groups communicate where this function is on the stack.
std::optional<cluster::Dimension> DimensionHint(std::string_view frame);

// A native function under which a thread waits for other ranks, and one that only threads of communication libraries
// have, which wait for ever whatever the rank does.
bool IsNativeCommunication(std::string_view frame);
bool IsBackground(std::string_view frame);

}  // namespace lockstep::detect
