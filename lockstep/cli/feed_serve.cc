#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/log.h"
#include "lockstep/cli/feed.h"
#include "lockstep/feed/heap.h"
#include "lockstep/feed/service.h"
#include "lockstep/node/run_dir.h"

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

absl::Status Serve(feed::ServiceOptions options) {
  std::error_code error;
  if (!std::filesystem::exists(options.data.path, error))
    return NotFound("--data {}: no such file or directory", options.data.path);
  if (options.name.empty()) options.name = std::filesystem::canonical(options.data.path, error).filename().string();
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
  poller.Run(Seconds{0.25}, [&] { service->Tick(); });
  return absl::OkStatus();
}

}  // namespace

void AddFeedServe(CLI::App& feed, int& exit_code) {
  auto options = std::make_shared<feed::ServiceOptions>();  // lives as long as the callbacks of the parser
  options->threads = std::max(1U, std::thread::hardware_concurrency());
  CLI::App* command = feed.add_subcommand("serve", "Prepare a data set for all jobs of this machine, until stopped");
  command->add_option("--data", options->data.path, "Directory of images, tar shards, or another data set")->required();
  command->add_option("--name", options->name, "What loaders call it; default: the directory's name");
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
  AddSocket(*command, options->socket);
  command->footer("Example: lockstep feed serve --data /data/imagenet/train --name imagenet --cache 16G");
  command->callback([options, &exit_code] {
    const absl::Status served = Serve(*options);
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

}  // namespace lockstep::cli
