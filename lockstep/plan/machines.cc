#include "lockstep/plan/machines.h"

#include <algorithm>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;

void ReadMachine(cluster::TableReader& in, Machines::Named& named) {
  using cluster::Sign;
  Machine& machine = named.machine;
  in.Require({"name", "rates", "bf16_tflops", "memory_gb", "memory_gb_s", "scale_up_gb_s", "nic_gb_s"});
  in.Text("name", machine.name);
  in.Texts("names", named.names);
  in.Text("rates", machine.rates);
  in.Number("bf16_tflops", Sign::kPositive, machine.bf16, kTera);
  in.Number("fp8_tflops", Sign::kPositive, machine.fp8, kTera);
  in.Number("fp4_tflops", Sign::kPositive, machine.fp4, kTera);
  in.Number("memory_gb", Sign::kPositive, machine.memory, kGiga);
  in.Number("memory_gb_s", Sign::kPositive, machine.bandwidth, kGiga);
  in.Number("scale_up_gb_s", Sign::kPositive, machine.scale_up, kGiga);
  in.Number("nic_gb_s", Sign::kPositive, machine.nic, kGiga);
  in.Integer("domain", {.least = 1, .most = 1 << 16}, machine.domain);
}

}  // namespace

absl::StatusOr<Machine> Machines::Find(std::string_view name) const {
  std::vector<std::string> known;
  for (const Named& named : all_) {
    if (named.machine.name == name || std::find(named.names.begin(), named.names.end(), name) != named.names.end())
      return named.machine;
    known.push_back(named.machine.name);
    known.insert(known.end(), named.names.begin(), named.names.end());
  }
  const std::string_view nearest = cluster::Nearest(name, known);
  return NotFound("no machine \"{}\" is known{}", name,
                  nearest.empty() ? std::string() : fmt::format("; the nearest is \"{}\"", nearest));
}

absl::StatusOr<Machines> ReadMachines(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  cluster::TableReader in(root, path);
  std::vector<Machines::Named> all;
  in.Tables("machine", [&](cluster::TableReader& inner) { ReadMachine(inner, all.emplace_back()); });
  LS_RETURN_IF_ERROR(in.Finish());
  return Machines(std::move(all));
}

}  // namespace lockstep::plan
