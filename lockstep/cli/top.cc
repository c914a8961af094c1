#include "lockstep/top/top.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/agent/spec.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cluster/job.h"
#include "lockstep/node/install.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"

namespace lockstep::cli {
namespace {

struct TopFlags {
  std::string run_dir, job_file;
  bool once = false;
};

// By each dimension in which the job's layout splits anything.
absl::StatusOr<std::vector<top::Folding>> FoldingsOf(const std::string& job_file, int ranks) {
  std::vector<top::Folding> foldings;
  if (job_file.empty()) return foldings;
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  LS_ASSIGN_OR_RETURN(const cluster::Job job, cluster::ReadJob(job_file, cluster::Presets(installation.presets)));
  if (!job.layout) return InvalidArgument("{} has no [layout] table to fold by", job_file);
  if (const absl::Status fits = job.layout->CheckRanks(ranks); !fits.ok())
    return InvalidArgument("{}: {}", job_file, Message(fits));
  for (const cluster::Dimension dimension : {cluster::Dimension::kTp, cluster::Dimension::kCp, cluster::Dimension::kEp,
                                             cluster::Dimension::kDp, cluster::Dimension::kPp}) {
    if (job.layout->Size(dimension) > 1) foldings.push_back(top::ByPlace(*job.layout, dimension));
  }
  return foldings;
}

absl::Status Start(const TopFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::string run_dir, node::FindLiveRunDir(flags.run_dir));
  LS_ASSIGN_OR_RETURN(const agent::RunSpec spec, agent::ReadRunSpec(run_dir));
  top::Options options{.run_dir = run_dir,
                       .foldings = {},
                       .status = [run_dir] { return node::QueryStatus(run_dir); },
                       .incidents = [run_dir] { return node::QueryIncidents(run_dir); }};
  LS_ASSIGN_OR_RETURN(options.foldings, FoldingsOf(flags.job_file, spec.place.world_size));
  return flags.once ? top::PrintOnce(options) : top::Watch(options);
}

}  // namespace

void AddTop(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TopFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand("top", "Watch a running job: worst ranks first, incidents, stacks");
  command->add_option("--run", flags->run_dir, kNewestLiveRun)->check(NotEmpty());
  command->add_option("--job-file", flags->job_file, "Fold ranks by the groups of this job file's layout, too");
  command->add_flag("--once", flags->once, "Print one frame and end; needs no terminal");
  command->footer("Keys: arrows select, enter opens, i incidents, ? help, q quits.\nExample: lockstep top");
  command->callback([flags, &exit_code] {
    const absl::Status done = Start(*flags);
    exit_code = done.ok() ? 0 : PrintError(done);
  });
}

}  // namespace lockstep::cli
