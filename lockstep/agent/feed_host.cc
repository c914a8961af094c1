#include "lockstep/agent/feed_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "lockstep/agent/launch.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/child.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kSoon{5}, kFirstPause{0.2}, kLongestPause{30};

// Without our name in front, or the hint that follows a word which is no option.
std::string LastLine(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return Message(text.status());
  std::string_view line = *text;
  const size_t hint = line.rfind("; see lockstep feed serve --help");
  line = line.substr(0, hint == std::string_view::npos ? line.find_last_not_of('\n') + 1 : hint);
  line = line.substr(line.rfind('\n') + 1);  // npos + 1: there is one line
  constexpr std::string_view kName = "lockstep: ";
  if (line.starts_with(kName)) line.remove_prefix(kName.size());
  return line.empty() ? "it said nothing" : std::string(line);
}

std::string HowItEnded(int status) {
  return WIFSIGNALED(status) ? fmt::format("by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                             : fmt::format("with status {}", WEXITSTATUS(status));
}

}  // namespace

std::string FeedSocket(const RunSpec& spec, const std::string& name) {
  return fmt::format("{}/{}.sock", FeedDir(spec), name);
}
std::string FeedLog(const RunSpec& spec, const std::string& name) {
  return fmt::format("{}/{}.log", FeedDir(spec), name);
}

FeedHost::FeedHost(const RunSpec& spec, const Clock& clock, Note note)
    : spec_(spec), clock_(clock), note_(std::move(note)) {
  for (const FeedSpec& feed : spec_.feeds)
    services_.push_back({.feed = feed, .pid = 0, .life = {}, .started = {}, .again = {}});
}

FeedHost::~FeedHost() {
  for (Service& service : services_) {
    if (service.pid != 0) kill(service.pid, SIGKILL);  // it keeps nothing
    while (service.pid != 0 && waitpid(service.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    unlink(FeedSocket(spec_, service.feed.name).c_str());
  }
}

absl::Status FeedHost::Start() {
  if (services_.empty()) return absl::OkStatus();
  if (mkdir(FeedDir(spec_).c_str(), 0700) != 0 && errno != EEXIST) return Errno(errno, "{}", FeedDir(spec_));
  for (Service& service : services_) LS_RETURN_IF_ERROR(Launch(service));
  for (Service& service : services_) LS_RETURN_IF_ERROR(AwaitReady(service));
  return absl::OkStatus();
}

absl::Status FeedHost::Launch(Service& service) {
  const FeedSpec& feed = service.feed;
  LS_ASSIGN_OR_RETURN(const std::string self, OwnBinary());
  LS_ASSIGN_OR_RETURN(auto pair, MakeSocketPair());
  const std::string path = FeedLog(spec_, feed.name);
  const Fd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return Errno(errno, "{}", path);
  std::vector<std::string> command = {
      self, "feed", "serve", "--data", feed.data, "--name", feed.name, "--socket", FeedSocket(spec_, feed.name)};
  command.insert(command.end(), feed.options.begin(), feed.options.end());
  service.started = clock_.Now();
  LS_ASSIGN_OR_RETURN(service.pid, StartProcess(command, {{"LOCKSTEP_OWNER_FD", std::to_string(pair.second.get())}},
                                                spec_.cwd, log.get(), log.get(), pair.second.get()));
  service.life = std::move(pair.first);
  return absl::OkStatus();
}

// It says one word when it answers. How long that takes depends on the data set.
absl::Status FeedHost::AwaitReady(Service& service) const {
  const char* launcher = std::getenv(kReadyVariable);
  pollfd ends[] = {{.fd = service.life.get(), .events = POLLIN, .revents = 0},
                   {.fd = launcher != nullptr ? std::atoi(launcher) : -1, .events = 0, .revents = 0}};
  while (poll(ends, 2, -1) < 0 && errno == EINTR) {
  }
  if (ends[1].revents != 0) return Unavailable("--feed {}: nobody waits for it any more", service.feed.name);
  const std::optional<Packet> packet = ReceivePacket(service.life.get());
  if (packet && !packet->closed) return absl::OkStatus();
  return Unavailable("--feed {}: {}", service.feed.name, LastLine(FeedLog(spec_, service.feed.name)));
}

bool FeedHost::Owns(pid_t pid) const {
  return std::any_of(services_.begin(), services_.end(), [pid](const Service& one) { return one.pid == pid; });
}

void FeedHost::Reaped(pid_t pid, int wait_status) {
  const auto service =
      std::find_if(services_.begin(), services_.end(), [pid](const Service& one) { return one.pid == pid; });
  if (service == services_.end()) return;
  service->pid = 0;
  service->life.Close();
  const Nanos now = clock_.Now();
  const bool soon = now - service->started < ToNanos(kSoon);
  service->in_a_row = soon ? service->in_a_row + 1 : 0;
  const double pause =
      soon ? std::min(kLongestPause.value, kFirstPause.value * (1 << std::min(service->in_a_row, 10))) : 0;
  service->again = now + ToNanos(Seconds{pause});
  note_(fmt::format("the data service of {} ended {}: it is started anew; its log: {}", service->feed.name,
                    HowItEnded(wait_status), FeedLog(spec_, service->feed.name)));
  Tick();
}

void FeedHost::Tick() {
  for (Service& service : services_) {
    if (service.pid != 0 || clock_.Now() < service.again) continue;
    if (const absl::Status launched = Launch(service); !launched.ok()) {
      service.again = clock_.Now() + ToNanos(kLongestPause);
      note_(fmt::format("the data service of {} can't be started: {}", service.feed.name, Message(launched)));
    }
  }
}

}  // namespace lockstep::agent
