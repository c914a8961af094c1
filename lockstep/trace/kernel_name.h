// What the name of a kernel tells of communication.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::trace {

// Of NCCL or RCCL.
bool IsCommunication(std::string_view kernel);
// "allreduce" of "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)".
std::string CollectiveOfKernel(std::string_view kernel);

}  // namespace lockstep::trace
