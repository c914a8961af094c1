#include "lockstep/plan/calibration.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

constexpr std::string_view kStart = "rates_", kEnd = ".toml";

absl::StatusOr<std::map<std::string, double>> ReadSpreads(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  cluster::TableReader in(root, path);
  std::map<std::string, double> spreads;
  in.Tables("family", [&](cluster::TableReader& inner) {
    std::string name;
    double spread = 0;
    inner.Require({"name", "spread"});
    inner.Text("name", name);
    inner.Number("spread", cluster::Sign::kPositive, spread);
    spreads[name] = spread;
  });
  LS_RETURN_IF_ERROR(in.Finish());
  return spreads;
}

}  // namespace

std::optional<Rates> Calibration::Of(const Workload& workload) const {
  const auto known = hardware.find(workload.machine.rates);
  if (known == hardware.end()) return std::nullopt;
  const Stack* stack = stacks.Find(workload.stack);
  return stack == nullptr ? known->second : WithHabits(known->second, *stack);
}

absl::StatusOr<Calibration> ReadCalibration(const std::string& folder) {
  Calibration calibration;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kStart) || !name.ends_with(kEnd)) continue;
    const std::string hardware = name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
    LS_ASSIGN_OR_RETURN(calibration.hardware[hardware], ReadRates(entry.path().string()));
  }
  if (error) return InvalidArgument("{}: {}; expected a folder of `lockstep plan calibrate`", folder, error.message());
  if (calibration.hardware.empty())
    return InvalidArgument("{}: it has no rates_NAME.toml; expected a folder of `lockstep plan calibrate`", folder);
  LS_ASSIGN_OR_RETURN(calibration.stacks, ReadStacks(folder + "/stacks.toml"));
  LS_ASSIGN_OR_RETURN(calibration.spreads, ReadSpreads(folder + "/families.toml"));
  return calibration;
}

absl::Status WriteCalibration(const Calibration& calibration, const std::string& folder, const std::string& about) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return InvalidArgument("{}: {}; expected a folder that can be made", folder, error.message());
  const std::string comment = "# " + about + "\n";
  for (const auto& [name, rates] : calibration.hardware)
    LS_RETURN_IF_ERROR(WriteFileAtomically(fmt::format("{}/{}{}{}", folder, kStart, name, kEnd),
                                           comment + RatesText(rates, Scope::kHardware), kForReaders));
  LS_RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/stacks.toml", comment + StacksText(calibration.stacks), kForReaders));
  std::string families = comment;
  for (const auto& [name, spread] : calibration.spreads)
    families +=
        fmt::format("\n[[family]]\nname = {}\nspread = {:.4f}\n", cluster::TomlText(name), std::max(spread, .0001));
  return WriteFileAtomically(folder + "/families.toml", families, kForReaders);
}

}  // namespace lockstep::plan
