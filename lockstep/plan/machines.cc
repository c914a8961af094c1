#include "lockstep/plan/machines.h"

#include <absl/strings/ascii.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/cluster/toml.h"

namespace lockstep::plan {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6;

// What lies outside of these was given in another unit.
struct Figure {
  const char* key;
  double Machine::* member;
  double unit, least, most;
  double fast = 0;  // beyond it, twice what any preset has, it may be bits that were counted; 0: not looked at
};
constexpr Figure kFigures[] = {{"bf16_tflops", &Machine::bf16, kTera, .1, 1e5},
                               {"fp8_tflops", &Machine::fp8, kTera, .1, 1e5},
                               {"fp4_tflops", &Machine::fp4, kTera, .1, 1e5},
                               {"memory_gb", &Machine::memory, kGiga, 1, 1e4},
                               {"memory_gb_s", &Machine::bandwidth, kGiga, 10, 1e5},
                               {"cache_mb", &Machine::cache, kMega, 1, 1e5},
                               {"cache_gb_s", &Machine::cache_bandwidth, kGiga, 10, 1e6},
                               {"scale_up_gb_s", &Machine::scale_up, kGiga, .1, 1e5, 2000},
                               {"nic_gb_s", &Machine::nic, kGiga, .01, 1e4, 200},
                               {"host_link_gb_s", &Machine::host_link, kGiga, .1, 1e5},
                               {"host_memory_gb", &Machine::host_memory, kGiga, 1, 1e5},
                               {"host_memory_gb_s", &Machine::host_bandwidth, kGiga, 1, 1e5},
                               {"usd_per_hour", &Machine::usd_per_hour, 1, kUsdPerHour.least, kUsdPerHour.most},
                               {"power_w", &Machine::power, 1, kWatts.least, kWatts.most}};

// What is not given is 0.
void CheckUnit(cluster::TableReader& in, const Figure& figure, double given) {
  const double value = given / figure.unit;
  if (value != 0 && (value < figure.least || value > figure.most))
    in.Fail(figure.key, fmt::format("{} must be {:g} to {:g}, found {:g}: is it in another unit?", figure.key,
                                    figure.least, figure.most, value));
}

void ReadTier(cluster::TableReader& in, Machine& machine) {
  Tier tier;
  in.Require({"accelerators", "gb_s"});
  in.Integer("accelerators", {.least = 1, .most = 1 << 24}, tier.accelerators);
  in.Number("gb_s", cluster::Sign::kPositive, tier.bandwidth, kGiga);
  CheckUnit(in, {"gb_s", nullptr, kGiga, .01, 1e4}, tier.bandwidth);
  const int before = machine.tiers.empty() ? machine.domain : machine.tiers.back().accelerators;
  if (tier.accelerators <= before)
    in.Fail("accelerators",
            fmt::format("accelerators must be more than {}, the domain's or the tier's before it, found {}", before,
                        tier.accelerators));
  machine.tiers.push_back(tier);
}

void ReadMachine(cluster::TableReader& in, Machines::Named& named) {
  using cluster::Sign;
  Machine& machine = named.machine;
  in.Require({"name", "rates", "bf16_tflops", "memory_gb", "memory_gb_s", "scale_up_gb_s", "nic_gb_s"});
  in.Text("name", machine.name);
  in.Texts("names", named.names);
  in.Text("rates", machine.rates);
  for (const Figure& figure : kFigures) {
    in.Number(figure.key, Sign::kPositive, machine.*figure.member, figure.unit);
    CheckUnit(in, figure, machine.*figure.member);
  }
  in.Integer("domain", {.least = 1, .most = 1 << 16}, machine.domain);
  if (machine.domain > 1 && machine.nic > machine.scale_up)
    in.Fail("nic_gb_s", fmt::format("nic_gb_s must be at most scale_up_gb_s, {:g}, found {:g}: is it in Gb/s?",
                                    machine.scale_up / kGiga, machine.nic / kGiga));
  in.Tables("tier", [&](cluster::TableReader& inner) { ReadTier(inner, machine); });
}

// A name in lower case, letters and digits alone: people write one in many ways.
std::string PlainName(std::string_view name) {
  std::string plain;
  for (const char letter : name)
    if (absl::ascii_isalnum(static_cast<unsigned char>(letter)))
      plain += absl::ascii_tolower(static_cast<unsigned char>(letter));
  return plain;
}

}  // namespace

absl::StatusOr<Machine> Machines::Find(std::string_view name) const {
  std::vector<std::string> known;
  const std::string plain = PlainName(name);
  const auto is_it = [&](const std::string& other) { return PlainName(other) == plain; };
  for (const Named& named : all_) {
    if (is_it(named.machine.name) || std::ranges::any_of(named.names, is_it)) return named.machine;
    known.push_back(named.machine.name);
    known.insert(known.end(), named.names.begin(), named.names.end());
  }
  std::vector<std::string> nearest;  // those that begin so, or one that is spelled alike
  std::ranges::copy_if(known, std::back_inserter(nearest), [&](const auto& one) { return one.starts_with(name); });
  if (const std::string_view one = cluster::Nearest(name, known); nearest.empty() && !one.empty())
    nearest.emplace_back(one);
  if (nearest.empty())
    for (const Named& named : all_) nearest.push_back(named.machine.name);
  return NotFound("no machine \"{}\" is known; the nearest: {}", name, fmt::join(nearest, ", "));
}

std::string UnitNote(const Machine& machine) {
  for (const Figure& figure : kFigures)
    if (const double value = machine.*figure.member / figure.unit; figure.fast > 0 && value > figure.fast)
      return fmt::format("{}: {} is {:g}, more than twice that of any machine known here: is it in Gb/s?", machine.name,
                         figure.key, value);
  return "";
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
