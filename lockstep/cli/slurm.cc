#include "lockstep/cli/slurm.h"

#include <cstdlib>

#include "lockstep/base/number.h"
#include "lockstep/cli/torchrun_values.h"

namespace lockstep::cli {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::optional<SlurmStep> FindSlurmStep() {
  const std::optional<int> nodes = WholeNumber<int>(Variable("SLURM_STEP_NUM_NODES")),
                           node = WholeNumber<int>(Variable("SLURM_NODEID")),
                           tasks = WholeNumber<int>(Variable("SLURM_STEP_NUM_TASKS")),
                           job = WholeNumber<int>(Variable("SLURM_JOB_ID"));
  const std::string name = Variable("SLURMD_NODENAME"), list = Variable("SLURM_STEP_NODELIST");
  if (!nodes || !node || !tasks || !job || name.empty() || list.empty()) return std::nullopt;
  if (*nodes < 2 || *tasks != *nodes) return std::nullopt;
  return SlurmStep{*nodes, *node, name, FirstHost(list), *job};
}

std::string FirstHost(const std::string& host_list) {
  const size_t bracket = host_list.find('['), comma = host_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return host_list.substr(0, comma);
  const size_t end = host_list.find_first_of("-,]", bracket);
  const size_t close = host_list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return "";
  const size_t next = host_list.find(',', close);
  const std::string rest = host_list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
  return host_list.substr(0, bracket) + host_list.substr(bracket + 1, end - bracket - 1) + rest;
}

}  // namespace lockstep::cli
