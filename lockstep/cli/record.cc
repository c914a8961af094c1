#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/trace/trail_recorder.h"

namespace lockstep::cli {
namespace {

struct RecordFlags {
  std::string directory, out;
  double every_s = 1, for_s = 0, patience_s = 30;
  bool json = false;
};

void Sleep(double seconds) {
  const timespec time{.tv_sec = static_cast<time_t>(seconds),
                      .tv_nsec = static_cast<long>(std::fmod(seconds, 1) * 1e9)};
  nanosleep(&time, nullptr);
}

// Until all processes that had a trail are gone, and no others come; those that have not begun yet are waited for.
absl::StatusOr<Json> Record(const RecordFlags& flags) {
  if (!std::filesystem::is_directory(flags.directory))
    return InvalidArgument("{}: expected a directory with trails, or a run's (LOCKSTEP_TRAILS names it to a job)",
                           flags.directory);
  LS_ASSIGN_OR_RETURN(trace::RecordFileWriter file, trace::RecordFileWriter::Open(flags.out));
  trace::TrailRecorder recorder(flags.directory, std::move(file));
  EndAtInterrupt();
  const SystemClock clock;
  const Nanos begin = clock.Now();
  const auto passed = [&] { return ToSeconds(clock.Now() - begin).value; };
  LS_RETURN_IF_ERROR(recorder.Look());
  double alive_at = passed();
  while (!Interrupted() && (flags.for_s <= 0 || passed() < flags.for_s) && passed() - alive_at < flags.patience_s) {
    Sleep(flags.every_s);
    LS_RETURN_IF_ERROR(recorder.Look());
    if (recorder.alive() > 0 || recorder.trails() == 0) alive_at = passed();
  }
  LS_RETURN_IF_ERROR(recorder.Look(true));
  return Json{{"file", flags.out},
              {"trails", recorder.trails()},
              {"records", recorder.kept()},
              {"overwritten", recorder.overwritten()},
              {"damaged", recorder.damaged()},
              {"seconds", passed()}};
}

}  // namespace

void AddRecord(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RecordFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "record",
      "Keep what the collectors of a job note in a file, which diagnose reads; until the job ends, or Ctrl-C");
  command->add_option("DIR", flags->directory, "Directory of trails, or of a run")->required();
  command->add_option("--out", flags->out, "File to write, or to append to; name it *.records")->required();
  command->add_option("--every", flags->every_s, "Seconds between looks")
      ->check(Between(0.01, 3600.0))
      ->capture_default_str();
  command->add_option("--for", flags->for_s, "Seconds after which to end; 0: none")->check(NotBelowZero());
  command
      ->add_option("--patience", flags->patience_s,
                   "Seconds without any process before the job counts as over: restarts take some")
      ->check(NotBelowZero())
      ->capture_default_str();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep record /tmp/trails --out job.records");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Record(*flags), flags->json); });
}

}  // namespace lockstep::cli
