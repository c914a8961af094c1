#include "lockstep/cli/checkpoint_foreign.h"

#include <absl/strings/numbers.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/base/clean.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/wall_time.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/reshape/import.h"
#include "lockstep/reshape/open.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::cli {
namespace {

int Inspect(const std::string& path, bool json) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const auto saved = reshape::OpenSaved(*disk, path);
  if (!saved.ok()) return PrintError(saved.status());
  const Json report = json ? reshape::DetailedReport(*saved) : reshape::ShortReport(*saved);
  const int printed = PrintReport(report, json);
  return printed == 0 && !report["whole"].get<bool>() ? kExitNo : printed;
}

absl::StatusOr<reshape::ImportOptions> ToOptions(const ForeignImport& flags) {
  if (flags.world_size == 0 && !flags.as_saved)
    return InvalidArgument("--out needs --world N, the number of ranks of the run to come");
  reshape::ImportOptions options{.world_size = flags.world_size, .as_saved = flags.as_saved, .step = flags.step};
  for (const std::string& shard : flags.shards) {
    const size_t equals = shard.rfind('=');
    uint32_t dimension = 0;
    if (equals == std::string::npos || !absl::SimpleAtoi(shard.substr(equals + 1), &dimension))
      return InvalidArgument("--shard {}: expected PATTERN=DIMENSION, such as model.*.weight=0", shard);
    options.shards.emplace_back(shard.substr(0, equals), dimension);
  }
  for (const std::string& rename : flags.renames) {
    const size_t equals = rename.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--rename {}: expected OLD=NEW, the begins of names, such as =model.", rename);
    options.renames.emplace_back(rename.substr(0, equals), rename.substr(equals + 1));
  }
  return options;
}

void SayWhatIsLeftOut(const reshape::Saved& saved, const ForeignImport& flags) {
  for (const std::string& why : saved.passed_over) fmt::print(stderr, "lockstep: passed over: {}\n", Clean(why));
  if (!flags.step && reshape::StepOf(saved) < 0)
    fmt::print(stderr, "lockstep: it names no step: taken for 0, unless --step says another\n");
}

}  // namespace

void AddForeignInspect(CLI::App& parent, int& exit_code) {
  struct Flags {
    std::string path;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = parent.add_subcommand(
      "inspect",
      "What a checkpoint holds, of Lockstep, torch.distributed.checkpoint, Megatron or torch.save; exit "
      "status 1 if a tensor lacks a part");
  command->add_option("PATH", flags->path, "The folder or file")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout, with the place of every shard");
  command->footer("Example: lockstep checkpoint inspect /data/dcp/step_100");
  command->callback([flags, &exit_code] { exit_code = Inspect(flags->path, flags->json); });
}

void AddForeignFlags(CLI::App& command, ForeignImport& flags) {
  CLI::Option* out = command.add_option("--out", flags.out, "The --checkpoint-dir of the run to come");
  const auto add = [&](CLI::Option* option) { option->needs(out); };
  add(command
          .add_option("--world", flags.world_size, "How many ranks it will have; with --as-saved, as many as saved it")
          ->check(Between(1, 1 << 20)));
  add(command.add_flag("--as-saved", flags.as_saved, "Each rank gets what the rank of its number saved"));
  add(command.add_option(
      "--shard", flags.shards,
      "PATTERN=DIMENSION: tensors of such names are split along it; others are whole on every rank"));
  add(command.add_option("--rename", flags.renames,
                         "OLD=NEW: what names begin with, and what takes its place; =model. puts it before all"));
  add(command.add_option("--step", flags.step, "The step that was finished last; default: what the checkpoint says")
          ->check(Between(0, 1e15)));
}

absl::Status ImportForeign(const std::string& path, const ForeignImport& flags) {
  LS_ASSIGN_OR_RETURN(reshape::ImportOptions options, ToOptions(flags));
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  LS_ASSIGN_OR_RETURN(const reshape::Saved saved, reshape::OpenSaved(*disk, path));
  if (options.as_saved && saved.world_size == 0)
    return InvalidArgument("--as-saved: {} does not say which rank saved what: give --world N in its place", path);
  if (options.world_size == 0) options.world_size = saved.world_size;
  LS_ASSIGN_OR_RETURN(const reshape::Plan plan, reshape::MakePlan(saved, options));
  SayWhatIsLeftOut(saved, flags);
  LS_RETURN_IF_ERROR(MakeDirectory(flags.out));
  LS_ASSIGN_OR_RETURN(const store::WriterLock lock, store::WriterLock::Take(flags.out + "/.lock"));
  const std::string now = IsoSecond(SystemClock().WallNow());
  LS_ASSIGN_OR_RETURN(const checkpoint::Point point, reshape::Import(*disk, saved, plan, options, flags.out, now));
  fmt::print("{}/{} is now the newest checkpoint: {} tensors and {} values for each of {} ranks\n", flags.out,
             checkpoint::DirectoryName(point), saved.tensors.size(), saved.values.size(), options.world_size);
  return absl::OkStatus();
}

}  // namespace lockstep::cli
