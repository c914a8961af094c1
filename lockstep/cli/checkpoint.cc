// `lockstep checkpoint`: looks at checkpoints on disk, and turns them into other formats by the user's Python.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/agent/python.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/cli/commands.h"
#include "lockstep/node/install.h"

namespace lockstep::cli {
namespace {

struct CheckpointFlags {
  std::string directory;
  bool json = false;
  std::string format, file, python;
};

using Report = absl::StatusOr<Json> (*)(const checkpoint::Store& store);

int Print(const CheckpointFlags& flags, Report report) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const absl::StatusOr<Json> document = report(checkpoint::Store(*disk, flags.directory));
  const int printed = PrintReport(document, flags.json);
  return printed == 0 && !document->value("valid", true) ? kExitNo : printed;
}

void AddReport(CLI::App& parent, const std::string& name, const std::string& what, Report report, int& exit_code) {
  auto flags = std::make_shared<CheckpointFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = parent.add_subcommand(name, what);
  command->add_option("DIR", flags->directory, "The --checkpoint-dir of the run")->required();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep checkpoint " + name + " /data/checkpoints");
  command->callback([flags, report, &exit_code] { exit_code = Print(*flags, report); });
}

// The path of the newest checkpoint whose sums are right.
absl::StatusOr<std::string> NewestWhole(const std::string& directory) {
  const std::unique_ptr<checkpoint::Disk> disk = checkpoint::PosixDisk();
  const checkpoint::Store store(*disk, directory);
  LS_ASSIGN_OR_RETURN(const std::vector<checkpoint::Point> points, store.List());
  for (const checkpoint::Point& point : points) {
    const absl::Status status = store.Verify(point);
    if (status.ok()) return directory + "/" + checkpoint::DirectoryName(point);
    fmt::print(stderr, "lockstep: passed over: {}\n", Message(status));
  }
  return NotFound("{} holds no checkpoint that is whole", directory);
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

void AddConverter(CLI::App& parent, const std::string& verb, const std::string& what, const std::string& option,
                  int& exit_code) {
  auto flags = std::make_shared<CheckpointFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = parent.add_subcommand(verb, what);
  command->add_option("DIR", flags->directory, "The --checkpoint-dir of the run")->required();
  command->add_option(option, flags->format, "torch (a file of torch.save) or dcp (torch.distributed.checkpoint)")
      ->required()
      ->check(CLI::IsMember({"torch", "dcp"}));
  command->add_option("FILE", flags->file, "The file, or with dcp the directory")->required();
  command->add_option("--python", flags->python, "Interpreter that has torch; found as by lockstep run");
  command->callback([verb, flags, &exit_code] { exit_code = PrintError(Convert(verb, *flags)); });
}

}  // namespace

void AddCheckpoint(CLI::App& app, int& exit_code) {
  CLI::App* parent = app.add_subcommand("checkpoint", "Checkpoints on disk: list, verify, export, import");
  parent->require_subcommand(1);
  AddReport(*parent, "list", "What is there, newest first", checkpoint::ListReport, exit_code);
  AddReport(*parent, "verify", "Read everything and compare the sums; exit status 1 if something is damaged",
            checkpoint::VerifyReport, exit_code);
  AddConverter(*parent, "export", "Write the newest checkpoint for torch", "--to", exit_code);
  AddConverter(*parent, "import", "Put what export wrote, changed perhaps, back as the newest checkpoint", "--from",
               exit_code);
}

}  // namespace lockstep::cli
