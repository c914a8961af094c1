// `lockstep checkpoint`: looks at checkpoints on disk or in a store, copies them from one to the other, and turns them
// into other formats by the user's Python. Those of other systems: checkpoint_foreign.cc.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/agent/python.h"
#include "lockstep/base/clean.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/cli/checkpoint_foreign.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/node/install.h"
#include "lockstep/remote/copies.h"

namespace lockstep::cli {
namespace {

struct CheckpointFlags {
  std::string directory;
  bool json = false;
  std::string format, file, python;
};

using Report = absl::StatusOr<Json> (*)(const checkpoint::Store& store);

bool Always() { return true; }

absl::StatusOr<Json> Ask(const std::string& directory, Report report) {
  if (!remote::IsUrl(directory)) {
    const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
    return report(checkpoint::Store(*disk, directory));
  }
  const SystemClock clock;
  LS_ASSIGN_OR_RETURN(const remote::Copies copies, remote::OpenCopies(directory, clock, Always));
  return report(checkpoint::Store(*copies.disk, copies.directory));
}

int Print(const CheckpointFlags& flags, Report report) {
  const absl::StatusOr<Json> document = Ask(flags.directory, report);
  const int printed = PrintReport(document, flags.json);
  return printed == 0 && !document->value("valid", true) ? kExitNo : printed;
}

void AddReport(CLI::App& parent, const std::string& name, const std::string& what, Report report, int& exit_code) {
  auto flags = std::make_shared<CheckpointFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = parent.add_subcommand(name, what);
  command->add_option("DIR", flags->directory, "The --checkpoint-dir of the run, or s3://BUCKET/PREFIX")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep checkpoint " + name + " /data/checkpoints");
  command->callback([flags, report, &exit_code] { exit_code = Print(*flags, report); });
}

void PassOver(const std::string& why) { fmt::print(stderr, "lockstep: passed over: {}\n", Clean(why)); }

// The path of the newest checkpoint whose sums are right.
absl::StatusOr<std::string> NewestWhole(const std::string& directory) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const checkpoint::Store store(*disk, directory);
  LS_ASSIGN_OR_RETURN(const std::vector<checkpoint::Point> points, store.List());
  for (const checkpoint::Point& point : points) {
    const absl::Status status = store.Verify(point);
    if (status.ok()) return directory + "/" + checkpoint::DirectoryName(point);
    if (!checkpoint::MeansDamage(status)) return At("can't be verified", status);  // it may be whole
    PassOver(Message(status));
  }
  return NotFound("{} holds no checkpoint that is whole", directory);
}

// The newest one of a store becomes the newest one of a directory, which no run may be writing to.
absl::Status Fetch(const std::string& url, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return InvalidArgument("{}: {}", directory, error.message());
  const SystemClock clock;
  LS_ASSIGN_OR_RETURN(const remote::Copies copies, remote::OpenCopies(url, clock, Always));
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  checkpoint::Store here(*disk, directory);
  const checkpoint::Store there(*copies.disk, copies.directory);
  LS_ASSIGN_OR_RETURN(const checkpoint::Point point, remote::FetchInto(here, there, Always, PassOver));
  fmt::print("{}/{} is now the newest checkpoint\n", directory, checkpoint::DirectoryName(point));
  return absl::OkStatus();
}

absl::Status Upload(const std::string& directory, const std::string& url, int keep) {
  const SystemClock clock;
  LS_ASSIGN_OR_RETURN(const remote::Copies copies, remote::OpenCopies(url, clock, Always));
  LS_ASSIGN_OR_RETURN(const std::string newest, NewestWhole(directory));
  const auto point = checkpoint::PointOf(std::filesystem::path(newest).filename().string());
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  checkpoint::Store there(*copies.disk, copies.directory);
  LS_ASSIGN_OR_RETURN(const Fd writes, remote::Prepare(copies));
  LS_RETURN_IF_ERROR(remote::CopyTo(copies, there, checkpoint::Store(*disk, directory), *point, Always,
                                    checkpoint::Store::Here::kBySums));
  if (const absl::Status tidied = there.Tidy(keep); !tidied.ok())
    fmt::print(stderr, "lockstep: old checkpoints stay there: {}\n", Clean(Message(tidied)));
  fmt::print("{}/{} is there\n", copies.directory, checkpoint::DirectoryName(*point));
  return absl::OkStatus();
}

int Done(const absl::Status& status) { return status.ok() ? 0 : PrintError(status); }

void AddCopying(CLI::App& parent, int& exit_code) {
  struct Flags {
    std::string url, directory;
    int keep = 2;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  const char* url = "s3://BUCKET/PREFIX, by AWS_... of the environment, or a mounted directory";
  CLI::App* fetch = parent.add_subcommand("fetch", "Bring the newest checkpoint of a store into a directory");
  fetch->add_option("URL", flags->url, url)->required();
  fetch->add_option("DIR", flags->directory, "The --checkpoint-dir of the run to come")->required();
  fetch->callback([flags, &exit_code] { exit_code = Done(Fetch(flags->url, flags->directory)); });
  CLI::App* upload = parent.add_subcommand("upload", "Put the newest checkpoint of a directory into a store");
  upload->add_option("DIR", flags->directory, "The --checkpoint-dir of the run")->required();
  upload->add_option("URL", flags->url, url)->required();
  upload->add_option("--keep", flags->keep, "How many are kept there")
      ->capture_default_str()
      ->check(Between(1, 1000000));
  upload->callback([flags, &exit_code] { exit_code = Done(Upload(flags->directory, flags->url, flags->keep)); });
}

// Becomes Python, which has torch. Returns only if it can't.
absl::Status Convert(const std::string& verb, const CheckpointFlags& flags) {
  std::string place = flags.directory;
  if (verb == "export") {
    LS_ASSIGN_OR_RETURN(place, NewestWhole(flags.directory));
  }
  LS_ASSIGN_OR_RETURN(const agent::PythonChoice python, agent::FindPython(flags.python));
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  const std::string program = installation.package_dir + "/lockstep/_convert.py";
  execl(python.path.c_str(), python.path.c_str(), program.c_str(), verb.c_str(), place.c_str(), flags.format.c_str(),
        flags.file.c_str(), installation.client_lib.c_str(), nullptr);
  return Errno(errno, "starting {}", python.path);
}

constexpr char kFormats[] = "torch (a file of torch.save) or dcp (torch.distributed.checkpoint)";

void AddExport(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<CheckpointFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = parent.add_subcommand("export", "Write the newest checkpoint for torch");
  command->add_option("DIR", flags->directory, "The --checkpoint-dir of the run")->required();
  command->add_option("--to", flags->format, kFormats)->required()->check(CLI::IsMember({"torch", "dcp"}));
  command->add_option("FILE", flags->file, "The file, or with dcp the directory")->required();
  command->add_option("--python", flags->python, "Interpreter that has torch; found as by lockstep run");
  command->callback([flags, &exit_code] { exit_code = PrintError(Convert("export", *flags)); });
}

absl::Status Import(const CheckpointFlags& flags, const ForeignImport& foreign) {
  if (!foreign.out.empty()) return ImportForeign(flags.directory, foreign);
  if (!flags.format.empty() && !flags.file.empty()) return Convert("import", flags);
  return InvalidArgument(
      "say what to import: PATH --out DIR --world N, a checkpoint of another system, or DIR --from torch FILE, what "
      "`lockstep checkpoint export` wrote");
}

void AddImport(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<CheckpointFlags>();  // lives as long as the callbacks of the parser
  auto foreign = std::make_shared<ForeignImport>();
  CLI::App* command = parent.add_subcommand(
      "import", "Make a checkpoint of another system's, or of what export wrote, the newest of a directory");
  command->add_option("PATH", flags->directory, "What `inspect` reads; with --from, the --checkpoint-dir of the run")
      ->required();
  AddForeignFlags(*command, *foreign);
  CLI::Option* from = command->add_option("--from", flags->format, std::string("Of what export wrote: ") + kFormats);
  from->check(CLI::IsMember({"torch", "dcp"}))->excludes(command->get_option("--out"));
  command->add_option("FILE", flags->file, "With --from: the file, or with dcp the directory");
  command->add_option("--python", flags->python, "With --from: interpreter that has torch; found as by lockstep run");
  command->footer("Example: lockstep checkpoint import /data/dcp/step_100 --out /data/ckpt --world 8 --rename =model.");
  command->callback([flags, foreign, &exit_code] { exit_code = Done(Import(*flags, *foreign)); });
}

}  // namespace

void AddCheckpoint(CLI::App& app, int& exit_code) {
  CLI::App* parent =
      app.add_subcommand("checkpoint", "Checkpoints on disk: list, verify, inspect, fetch, upload, export, import");
  parent->require_subcommand(1);
  AddReport(*parent, "list", "What is there, newest first", checkpoint::ListReport, exit_code);
  AddReport(*parent, "verify", "Read everything and compare the sums; exit status 1 if something is damaged",
            checkpoint::VerifyReport, exit_code);
  AddCopying(*parent, exit_code);
  AddForeignInspect(*parent, exit_code);
  AddExport(*parent, exit_code);
  AddImport(*parent, exit_code);
}

}  // namespace lockstep::cli
