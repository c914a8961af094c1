// What the name of a kernel tells of communication, and names by number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::trace {

// Of NCCL or RCCL.
bool IsCommunication(std::string_view kernel);
// "allreduce" of "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)".
std::string CollectiveOfKernel(std::string_view kernel);

class KernelNames {
 public:
  // The place of a name in `names`, which only this object adds to; a new one is put at their end.
  uint32_t Of(std::string_view name, std::vector<std::string>& names);

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> index_;
};

}  // namespace lockstep::trace
