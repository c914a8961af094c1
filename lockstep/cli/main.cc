#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/torchrun_words.h"

namespace lockstep::cli {

bool IsCommand(const CLI::App& app, const std::string& name) {
  const std::vector<const CLI::App*> commands = app.get_subcommands({});
  return std::any_of(commands.begin(), commands.end(),
                     [&](const auto* command) { return command->get_name() == name; });
}

// Of the commands within commands that were named: " feed serve".
std::string Chosen(const CLI::App& app) {
  std::string words;
  for (const CLI::App* command : app.get_subcommands()) words += " " + command->get_name() + Chosen(*command);
  return words;
}

// CLI11 makes 2^64 - 5 of -5, and of 1.5 an error that does not say what was expected.
void CheckWholeNumbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("UINT")) option->check(NotBelowZero().description(""));
    if (option->get_type_name().starts_with("INT") || option->get_type_name().starts_with("UINT"))
      option->check(AnyWholeNumber().description(""));
  }
  for (CLI::App* command : app.get_subcommands({})) CheckWholeNumbers(*command);
}

// In the order in which CLI11 takes them: the last first.
std::vector<std::string> Words(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words.front() == "run") {
    words = AsTorchrunReads(*app.get_subcommand("run"), {words.begin() + 1, words.end()});
    words.insert(words.begin(), "run");
  }
  std::reverse(words.begin(), words.end());
  return words;
}

}  // namespace lockstep::cli

int main(int argc, char** argv) {
  using namespace lockstep::cli;
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails, as on a full disk, and does not end us
  CLI::App app("Lockstep keeps synchronous training jobs in step: runs them, finds who holds them back, and repairs.",
               "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  AddRun(app, exit_code);
  AddCoordinator(app, exit_code);
  AddStatus(app, exit_code);
  AddIncidents(app, exit_code);
  AddWhy(app, exit_code);
  AddPolicy(app, exit_code);
  AddUpdate(app, exit_code);
  AddStop(app, exit_code);
  AddDrill(app, exit_code);
  AddTop(app, exit_code);
  AddCheckpoint(app, exit_code);
  AddDiagnose(app, exit_code);
  AddRecord(app, exit_code);
  AddInspect(app, exit_code);
  AddDowntime(app, exit_code);
  AddStandbys(app, exit_code);
  AddReport(app, exit_code);
  AddProbe(app, exit_code);
  AddPlan(app, exit_code);
  AddReplay(app, exit_code);
  AddFeed(app, exit_code);
  AddExplain(app, exit_code);
  AddSimulate(app, exit_code);
  AddHidden(app, exit_code);
  CheckWholeNumbers(app);
  if (argc > 1 && *argv[1] != '-' && !IsCommand(app, argv[1])) {
    return PrintError(lockstep::InvalidArgument("there is no command \"{}\"; see lockstep --help", argv[1]));
  }
  try {
    app.parse(Words(app, argc, argv));
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
  } catch (const std::filesystem::filesystem_error& error) {
    return PrintError(lockstep::Errno(error.code().value(), "{}", error.path1().string()));
  } catch (const std::system_error& error) {  // fmt::print throws where it can't write
    return PrintError(std::ferror(stdout) != 0 ? lockstep::Errno(error.code().value(), "standard output")
                                               : lockstep::InvalidArgument("{}", error.what()));
  } catch (const std::bad_alloc&) {
    return PrintError(lockstep::MakeError(absl::StatusCode::kResourceExhausted, "out of memory"));
  } catch (const CLI::Success& asked) {  // for help or the version
    const int code = app.exit(asked);
    return std::cout.flush() ? code : PrintError(lockstep::Errno(errno, "standard output"));
  } catch (const CLI::ParseError& error) {
    return PrintError(lockstep::InvalidArgument("{}; see lockstep{} --help", error.what(), Chosen(app)));
  }
  return exit_code;
}
