#include <memory>

#include "lockstep/base/host.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/coordinator_flags.h"
#include "lockstep/cli/torchrun_flags.h"
#include "lockstep/node/coordinate.h"
#include "lockstep/node/init.h"
#include "lockstep/store/postgres_session.h"

namespace lockstep::cli {
namespace {

struct CoordinatorFlags {
  node::RunOptions options;
  std::string listen, resume, nnodes;
  int join_timeout = 600;
  bool no_view = false;
};

absl::Status CheckJournal(const CoordinatorFlags& flags) {
  const node::RunOptions& options = flags.options;
  if (!store::IsPostgresUrl(options.journal))
    return InvalidArgument("--journal must be postgresql://[USER@]HOST[:PORT]/DATABASE, found \"{}\"", options.journal);
  if (options.job.empty())
    return InvalidArgument("--journal needs --job NAME, by which all coordinators of the job know its journal");
  if (!flags.resume.empty())
    return InvalidArgument("--resume is for a journal in the run directory: with --journal, start it as before");
  return absl::OkStatus();
}

absl::StatusOr<int> Start(CoordinatorFlags& flags, const CLI::App& command) {
  LS_RETURN_IF_ERROR(CheckTexts(command));
  node::RunOptions& options = flags.options;
  options.live_view = !flags.no_view;
  options.nodes.join_timeout = Seconds{static_cast<double>(flags.join_timeout)};
  if (!flags.resume.empty() && options.journal.empty())
    LS_RETURN_IF_ERROR(GoOnAsBefore(flags.resume, command, options));
  LS_RETURN_IF_ERROR(CheckServing(command, options));
  LS_RETURN_IF_ERROR(ReadFilesOf(options));
  node::StandBehindInit();
  if (!options.journal.empty()) LS_RETURN_IF_ERROR(CheckJournal(flags));
  if (!flags.resume.empty()) return node::ResumeCoordinating(flags.resume, options);
  if (!options.standby_job.empty() && options.cluster == "none")
    return InvalidArgument("--standby-job {} needs the scheduler that is to run it: --cluster slurm",
                           options.standby_job);
  const std::optional<Endpoint> endpoint = ParseEndpoint(flags.listen);
  if (!endpoint || endpoint->port.value_or(0) == 0)
    return InvalidArgument("--listen must be HOST:PORT, an address of this machine, found \"{}\"", flags.listen);
  options.nodes.endpoint = flags.listen;
  if (!flags.nnodes.empty()) {
    LS_ASSIGN_OR_RETURN(const NodeCount count, ParseNodeCount(flags.nnodes));
    options.nodes.expected.least_nodes = count.least;
    options.nodes.expected.most_nodes = count.most;
  }
  return node::Coordinate(options);
}

}  // namespace

void AddCoordinator(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<CoordinatorFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand("coordinator", "Lead a job of several nodes from a machine without ranks");
  node::RunOptions& options = flags->options;
  command->add_option("--listen", flags->listen, "HOST:PORT at which the nodes' agents find it");
  command->add_option("--nnodes", flags->nnodes,
                      "Nodes of the job, N or MIN:MAX; default: what the nodes themselves say");
  command->add_option("--job", options.job, "Name of the job")->check(NotEmpty());
  command->add_option("--run", options.run_dir, kNewRunDir)->check(NotEmpty());
  command->add_option("--resume", flags->resume, "Go on with the job of this run directory, whose coordinator died")
      ->check(NotEmpty());
  command->add_option(
      "--journal", options.journal,
      "Keep the journal in PostgreSQL: postgresql://HOST/DATABASE. Of several coordinators with the same "
      "one and the same --job, one leads and the others stand in");
  command->add_option("--join-timeout-s", flags->join_timeout, "Seconds to wait until all nodes are there")
      ->capture_default_str()
      ->check(AboveZero());
  command->add_option("--max-restarts", options.max_restarts, "Restarts in the life of the run; default 1000")
      ->check(Between(0, 1e9));
  command->add_flag("--allow-drill", options.allow_drill, "Let `lockstep drill kill-coordinator` strike it");
  command->add_flag("--no-view", flags->no_view, "No live view, even on a terminal");
  DeclareCoordination(*command, options);
  command->footer(
      "Example: lockstep coordinator --listen 10.0.0.1:29400 --nnodes 2 --standbys 1, and on each of three nodes\n"
      "  lockstep run --coordinator 10.0.0.1:29400 --nproc-per-node 8 train.py\n"
      "With another one to take over: on 10.0.0.1 and, with its own address, on 10.0.0.2\n"
      "  lockstep coordinator --listen 10.0.0.1:29400 --nnodes 2 --job gpt --journal postgresql://db/lockstep\n"
      "and on the nodes --coordinator 10.0.0.1:29400,10.0.0.2:29400");
  command->callback([flags, command, &exit_code] { exit_code = ExitCodeOf(Start(*flags, *command)); });
}

}  // namespace lockstep::cli
