#include "lockstep/agent/inspection.h"

#include <chrono>
#include <filesystem>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/slow_call.h"
#include "lockstep/inspect/inspector.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kPatience{1};

std::vector<std::string> Resolved(const std::vector<std::string>& paths) {
  std::vector<std::string> real;
  for (const std::string& path : paths) {
    std::error_code error;
    const std::filesystem::path found = std::filesystem::canonical(path, error);
    if (!error) real.push_back(found.string());
  }
  return real;
}

// To follow links may take for ever where a server is gone: then the names as they are must do.
inspect::Where Resolved(inspect::Where where, Nanos now) {
  if (!where.tree.root().empty()) return where;
  SlowCall<std::vector<std::string>> resolve([paths = where.paths] { return Resolved(paths); });
  resolve.Begin(now);
  if (std::optional<std::vector<std::string>> real = resolve.Await(kPatience)) where.paths = *std::move(real);
  return where;
}

}  // namespace

Inspection::Inspection(Poller& poller, const Clock& clock, const inspect::Settings& settings, inspect::Where where,
                       Hear hear)
    : clock_(clock), hear_(std::move(hear)), alerts_(poller) {
  thread_ = std::jthread(
      [this, settings, where = std::move(where)](const std::stop_token& stop) { Loop(stop, settings, where); });
}

Inspection::~Inspection() {
  thread_.request_stop();
  thread_.join();
  alerts_.Close();
}

void Inspection::Loop(const std::stop_token& stop, const inspect::Settings& settings, inspect::Where where) {
  TakeNoSignals();
  inspect::Inspector inspector(settings);
  inspect::Readers readers(settings, Resolved(std::move(where), clock_.Now()));
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    inspector.ReadDue(clock_.Now(), [&](inspect::Source source, Nanos now) { return readers.Read(source, now); });
    for (const inspect::Alert& alert : inspector.TakeChanges()) alerts_.Post([this, alert] { hear_(alert); });
    const std::chrono::duration<double> rest(inspector.UntilDue(clock_.Now()).value + 0.01);
    wake_.wait_for(lock, stop, rest, [] { return false; });
  }
}

}  // namespace lockstep::agent
