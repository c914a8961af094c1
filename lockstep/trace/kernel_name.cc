#include "lockstep/trace/kernel_name.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace lockstep::trace {

bool IsCommunication(std::string_view kernel) {
  constexpr std::array kMarks = {"ncclKernel", "ncclDevKernel", "ncclSym", "rccl"};  // Sym: of symmetric memory
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [kernel](const char* mark) { return kernel.find(mark) != std::string_view::npos; });
}

std::string CollectiveOfKernel(std::string_view kernel) {
  const size_t begin = kernel.find('_');
  if (begin == std::string_view::npos) return std::string(kernel);
  std::string name(kernel.substr(begin + 1, kernel.find_first_of("_(", begin + 1) - begin - 1));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

uint32_t KernelNames::Of(std::string_view name, std::vector<std::string>& names) {
  if (const auto known = index_.find(name); known != index_.end()) return known->second;
  names.emplace_back(name);
  return index_.emplace(name, static_cast<uint32_t>(names.size() - 1)).first->second;
}

}  // namespace lockstep::trace
