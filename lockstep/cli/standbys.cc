#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/base/number.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cost/standby.h"
#include "lockstep/node/install.h"

namespace lockstep::cli {
namespace {

struct StandbyFlags {
  std::string spec, daily_rate;
  std::optional<int64_t> machines, catastrophe;
  std::optional<double> quantile, replace_h, standby, reschedule, reschedule_each, requeue;
  bool json = false;
};

// "0.12%" or "0.0012".
absl::StatusOr<double> Share(const std::string& text) {
  const bool percent = text.ends_with('%');
  const auto value = WholeNumber<double>(std::string_view(text).substr(0, text.size() - (percent ? 1 : 0)));
  if (!value) return InvalidArgument("--daily-rate {}: expected a share such as 0.0012 or 0.12%", text);
  return percent ? *value / 100 : *value;
}

absl::Status TakeTimes(const StandbyFlags& flags, std::optional<cost::SchedulingTimes>& times) {
  if (!flags.standby && !flags.reschedule && !flags.reschedule_each && !flags.requeue) return absl::OkStatus();
  if (!times && !(flags.standby && flags.reschedule))
    return InvalidArgument("scheduling times need both --standby-s and --reschedule-s");
  if (!times) times.emplace();
  if (flags.standby) times->standby = {*flags.standby};
  if (flags.reschedule) times->reschedule = {*flags.reschedule};
  if (flags.reschedule_each) times->reschedule_each = {*flags.reschedule_each};
  if (flags.requeue) times->requeue = Seconds{*flags.requeue};
  return absl::OkStatus();
}

absl::StatusOr<Json> Sized(const StandbyFlags& flags) {
  cost::StandbySpec spec;
  if (!flags.spec.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string path, node::FindPreset("standbys", flags.spec));
    LS_ASSIGN_OR_RETURN(spec, cost::ReadStandbySpec(path));
  } else if (!flags.machines || flags.daily_rate.empty()) {
    return InvalidArgument("expected --machines and --daily-rate, or a SPEC that has them");
  }
  if (flags.machines) spec.machines = *flags.machines;
  if (!flags.daily_rate.empty()) {
    LS_ASSIGN_OR_RETURN(spec.daily_rate, Share(flags.daily_rate));
  }
  if (flags.quantile) spec.quantile = *flags.quantile;
  if (flags.catastrophe) spec.catastrophe = *flags.catastrophe;
  if (flags.replace_h) spec.replace = Seconds{*flags.replace_h * 3600};
  LS_RETURN_IF_ERROR(TakeTimes(flags, spec.times));
  return cost::StandbyReport(spec);
}

}  // namespace

void AddStandbys(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<StandbyFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand("standbys", "How many machines to keep warm, and what that saves");
  command->add_option("SPEC", flags->spec, "A preset, such as byterobust-1024, or a .toml file; flags win over it");
  command->add_option("--machines", flags->machines, "Of the job");
  command->add_option("--daily-rate", flags->daily_rate, "A machine's chance to fail on a day: 0.0012, or 0.12%");
  command->add_option("--quantile", flags->quantile, "Of all days or failures that are to be covered (default 0.99)");
  command->add_option("--replace-h", flags->replace_h, "Hours until another stands by in the place of one taken");
  command->add_option("--catastrophe-machines", flags->catastrophe, "That a switch takes along (default 32)");
  command->add_option("--standby-s", flags->standby, "Seconds until a standby is in the job");
  command->add_option("--reschedule-s", flags->reschedule, "Until one cold machine is; needed with --standby-s");
  command->add_option("--reschedule-each-s", flags->reschedule_each, "For each further one at a time (default 0)");
  command->add_option("--requeue-s", flags->requeue, "Until the whole job is scheduled anew");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep standbys --machines 1024 --daily-rate 0.12% --replace-h 24");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Sized(*flags), flags->json); });
}

}  // namespace lockstep::cli
