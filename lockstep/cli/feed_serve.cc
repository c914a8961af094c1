#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/log.h"
#include "lockstep/base/packets.h"
#include "lockstep/cli/feed.h"
#include "lockstep/feed/heap.h"
#include "lockstep/feed/service.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/prepare/data_file.h"
#include "lockstep/top/feed_top.h"

namespace lockstep::cli {
namespace {

Poller* serving = nullptr;  // of the one service of this process, for its signal handler

std::string DefaultSocket() {
  const char* named = std::getenv("LOCKSTEP_FEED_SOCKET");
  return named != nullptr && *named != '\0' ? named : node::RunsBase() + "/feed.sock";
}

void AddSocket(CLI::App& command, std::string& socket) {
  command.add_option("--socket", socket,
                     "Path of the service's socket; default: $LOCKSTEP_FEED_SOCKET, else "
                     "$XDG_RUNTIME_DIR/lockstep/feed.sock");
}

absl::Status MakePlaceFor(const std::string& socket) {
  const std::filesystem::path folder = std::filesystem::path(socket).parent_path();
  if (folder == node::RunsBase()) return node::MakeRunsBase();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::is_directory(folder, error))
    return NotFound("--socket {}: there is no directory {}", socket, folder.string());
  return absl::OkStatus();
}

// The last part of a path; of a URL, or of several files, what stands before its first dot or brace.
std::string NameOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (!error) return real.filename().string();
  std::string whole(prepare::WithoutQuery(path));
  while (whole.ends_with('/')) whole.pop_back();
  const std::string last = prepare::NameOf(whole);
  return last.substr(0, std::max<size_t>(std::min(last.find_first_of(".{"), last.size()), 1));
}

// Started by somebody who wants to know when loaders can join, and with whom it ends: `lockstep run --feed`.
Fd SayReady(Poller& poller) {
  const char* number = std::getenv("LOCKSTEP_OWNER_FD");
  if (number == nullptr) return {};
  Fd owner(std::atoi(number));
  unsetenv("LOCKSTEP_OWNER_FD");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);  // a scheduler's, for the job
  if (!SendPacket(owner.get(), "ready").ok()) poller.Stop();
  poller.Watch(owner.get(), [&poller] { poller.Stop(); });  // it says nothing: it is gone
  return owner;
}

absl::Status Serve(feed::ServiceOptions options) {
  if (options.name.empty()) options.name = NameOf(options.data.path);
  if (options.socket.empty()) options.socket = DefaultSocket();
  LS_RETURN_IF_ERROR(MakePlaceFor(options.socket));
  feed::BoundHeap();
  const SystemClock clock;
  Poller poller;
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<feed::Service> service, feed::Service::Open(options, poller, clock));
  serving = &poller;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, [](int) { serving->Stop(); });
  std::signal(SIGPIPE, SIG_IGN);
  Log(LogLevel::kInfo, "data set {}: {} items of {}, at {}", options.name, service->data().items(), options.data.path,
      options.socket);
  const Fd owner = SayReady(poller);
  poller.Run(Seconds{0.25}, [&] { service->Tick(); });
  return absl::OkStatus();
}

}  // namespace

void AddFeedServe(CLI::App& feed, int& exit_code) {
  auto options = std::make_shared<feed::ServiceOptions>();  // lives as long as the callbacks of the parser
  auto policy = std::make_shared<std::string>("auto");
  options->threads = std::max(1U, std::thread::hardware_concurrency());
  CLI::App* command = feed.add_subcommand("serve", "Prepare a data set for all jobs of this machine, until stopped");
  command
      ->add_option("--data", options->data.path,
                   "Directory of images or sounds, tar shards, or another data set; a path or an http(s):// URL, "
                   "with braces such as train-{000..146}.tar, or a list: shards.txt, index.json")
      ->required();
  command->add_option("--name", options->name, "What loaders call it; default: the name of the directory or file");
  command->add_option("--cache", options->cache_bytes, "Memory for items, wanted ones and those in work, such as 8G")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1G");
  command
      ->add_option("--ring-memory", options->ring_bytes,
                   "Memory for the batches of all jobs together; default: half of the machine's")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--threads", options->threads, "Threads that prepare; default: one for each core")
      ->check(CLI::Range(1, 1024));
  command->add_option("--tokens", options->data.tokens_per_item, "Of a token file: tokens of an item; it has one more");
  command->add_option("--token-bytes", options->data.token_bytes, "Likewise: bytes of a token")
      ->check(CLI::IsMember({2, 4}))
      ->capture_default_str();
  command->add_option("--policy", *policy,
                      "How jobs of one seed share: auto (the default: by predicted loads), common, paced, independent");
  command->add_option("--pack", options->data.pack, "Likewise: whole documents in rows of --tokens; best-fit or chunk")
      ->transform(CLI::CheckedTransformer(std::map<std::string, prepare::PackRule>{
          {"best-fit", prepare::PackRule::kBestFit}, {"chunk", prepare::PackRule::kChunk}}));
  command->add_option("--end-token", options->data.end_token, "Of packed tokens: the last token of each document");
  command->add_option("--documents", options->data.documents,
                      "Likewise: a .npy of whole numbers of 8 bytes, where each document begins, or ends");
  command
      ->add_option("--patience", options->data.patience.value,
                   "Seconds that a server which doesn't answer is waited for")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  AddSocket(*command, options->socket);
  command->footer("Example: lockstep feed serve --data /data/imagenet/train --name imagenet --cache 16G");
  command->callback([options, policy, &exit_code] {
    const auto chosen = feed::ParseServedPolicy(*policy);
    if (chosen.ok()) options->policy = *chosen;
    const absl::Status served = chosen.ok() ? Serve(*options) : chosen.status();
    exit_code = served.ok() ? 0 : PrintError(served);
  });
}

void AddFeedStatus(CLI::App& feed, int& exit_code) {
  struct Flags {
    std::string socket;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = feed.add_subcommand("status", "Of a data service: its jobs, what they share, memory, time");
  AddSocket(*command, flags->socket);
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->callback([flags, &exit_code] {
    exit_code = PrintReport(feed::AskStatus(flags->socket.empty() ? DefaultSocket() : flags->socket), flags->json);
  });
}

void AddFeedTop(CLI::App& feed, int& exit_code) {
  struct Flags {
    std::string socket;
    bool once = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = feed.add_subcommand(
      "top", "Watch a data service: jobs, sharing, memory, where its time goes; one frame where there is no terminal");
  AddSocket(*command, flags->socket);
  command->add_flag("--once", flags->once, "Print one frame and end");
  command->callback([flags, &exit_code] {
    const std::string socket = flags->socket.empty() ? DefaultSocket() : flags->socket;
    const top::FeedOptions options{[socket] { return feed::AskStatus(socket); }};
    const bool terminal = isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1;
    const absl::Status done = flags->once || !terminal ? top::PrintFeedOnce(options) : top::WatchFeed(options);
    exit_code = done.ok() ? 0 : PrintError(done);
  });
}

}  // namespace lockstep::cli
