#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/host.h"
#include "lockstep/base/log.h"
#include "lockstep/base/open_files.h"
#include "lockstep/base/packets.h"
#include "lockstep/base/secret.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/feed.h"
#include "lockstep/feed/heap.h"
#include "lockstep/feed/service.h"
#include "lockstep/node/feeds.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/relay/relay.h"
#include "lockstep/relay/sender.h"
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

// Of a link, as what it leads to.
std::string NameOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? node::NameOfData(path) : real.filename().string();
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

struct ServeFlags {
  feed::ServiceOptions service;
  std::string policy = "auto", listen, token_file;
};

// Until a signal, or the end of the owner.
void RunUntilStopped(Poller& poller, const std::function<void()>& tick) {
  serving = &poller;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, [](int) { serving->Stop(); });
  std::signal(SIGPIPE, SIG_IGN);
  const Fd owner = SayReady(poller);
  poller.Run(Seconds{0.25}, tick);
}

// What other machines reach the service at this socket by; null: they do not.
absl::StatusOr<std::unique_ptr<relay::Sender>> Listen(const ServeFlags& flags, const std::string& token) {
  if (flags.listen.empty()) return nullptr;
  LS_ASSIGN_OR_RETURN(std::unique_ptr<relay::Sender> sender,
                      relay::Sender::Start({.address = flags.listen, .socket = flags.service.socket, .token = token}));
  Log(LogLevel::kInfo, "other machines: --data {}{}", relay::kScheme,
      EndpointText({ParseEndpoint(flags.listen).value_or(Endpoint{}).host, sender->port()}));
  return sender;
}

void TellLeftOut(const feed::DataSet& data) {
  for (const auto& [name, count] : data.source().counters())
    if (count > 0) Log(LogLevel::kWarning, "data set {}: at opening: {} {}", data.name(), count, name);
}

absl::Status ServeData(ServeFlags flags, const std::string& token) {
  feed::ServiceOptions& options = flags.service;
  LS_ASSIGN_OR_RETURN(options.policy, feed::ParseServedPolicy(flags.policy));
  if (options.name.empty()) options.name = NameOf(options.data.path);
  options.for_machines = !flags.listen.empty();
  feed::BoundHeap();
  const SystemClock clock;
  Poller poller;
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<feed::Service> service, feed::Service::Open(options, poller, clock));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<relay::Sender> sender, Listen(flags, token));
  Log(LogLevel::kInfo, "data set {}: {} items of {}, at {}", options.name, service->data().items(),
      service->data().path(), options.socket);
  TellLeftOut(service->data());
  RunUntilStopped(poller, [&] { service->Tick(); });
  return absl::OkStatus();
}

absl::Status ServeRelay(const ServeFlags& flags, const std::string& token) {
  const std::string address = flags.service.data.path.substr(sizeof(relay::kScheme) - 1);
  const SystemClock clock;
  Poller poller;
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<relay::Relay> relay,
                      relay::Relay::Open({.address = address,
                                          .token = token,
                                          .name = flags.service.name,
                                          .socket = flags.service.socket,
                                          .ring_bytes = flags.service.ring_bytes,
                                          .patience = flags.service.data.patience},
                                         poller, clock));
  LS_ASSIGN_OR_RETURN(const std::unique_ptr<relay::Sender> sender, Listen(flags, token));
  Log(LogLevel::kInfo, "data set {}: {} items of {}, at {}", relay->name(), relay->items(), flags.service.data.path,
      flags.service.socket);
  RunUntilStopped(poller, [] {});
  return absl::OkStatus();
}

absl::Status Serve(ServeFlags flags, bool says_how_to_prepare) {
  if (flags.service.socket.empty()) flags.service.socket = DefaultSocket();
  LS_RETURN_IF_ERROR(MakePlaceFor(flags.service.socket));
  std::string token;
  if (!flags.token_file.empty()) {
    LS_ASSIGN_OR_RETURN(token, ReadToken(flags.token_file));
  }
  if (!flags.listen.empty() && !ParseEndpoint(flags.listen))
    return InvalidArgument("--listen {}: expected HOST:PORT, with a port from 0 to 65535", flags.listen);
  const bool relays = flags.service.data.path.starts_with(relay::kScheme);
  const auto far = relays ? ParseEndpoint(flags.service.data.path.substr(sizeof(relay::kScheme) - 1)) : std::nullopt;
  if (relays && (!far || far->port.value_or(0) == 0))
    return InvalidArgument("--data {}: expected feed://HOST:PORT, with a port from 1 to 65535",
                           flags.service.data.path);
  AllowOpenFiles(std::numeric_limits<uint64_t>::max());  // a rank takes two
  if (!relays) return ServeData(std::move(flags), token);
  if (says_how_to_prepare)
    return InvalidArgument(
        "--data {}: its items are made there, so --cache, --threads, --policy, --max-pixels and what tells how to read "
        "tokens are to be said to that service",
        flags.service.data.path);
  return ServeRelay(flags, token);
}

void AddPreparing(CLI::App& command, ServeFlags& flags) {
  feed::ServiceOptions& options = flags.service;
  command.add_option("--cache", options.cache_bytes, "Memory for items, wanted ones and those in work, such as 8G")
      ->transform(Size())
      ->default_str("1G");
  command.add_option("--threads", options.threads, "Threads that prepare; default: one for each core")
      ->check(Between(1, 1024));
  command.add_option("--policy", flags.policy,
                     "How jobs of one seed share: auto (the default: by predicted loads), common, paced, independent");
  command.add_option("--max-pixels", options.limits.max_pixels, "An image of more is an error of its item")
      ->check(AboveZero())
      ->capture_default_str();
  command.add_option("--tensor", options.data.tensor, "Of a safetensors file with several: the one to read");
  command.add_option("--tokens", options.data.tokens_per_item, "Of a token file: tokens of an item; it has one more");
  command.add_option("--token-bytes", options.data.token_bytes, "Likewise: bytes of a token")
      ->check(CLI::IsMember({2, 4}))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--pack",
          [&options](const std::string& rule) {
            options.data.pack = rule == "chunk" ? prepare::PackRule::kChunk : prepare::PackRule::kBestFit;
          },
          "Likewise: whole documents in rows of --tokens")
      ->check(CLI::IsMember({"best-fit", "chunk"}));
  command.add_option("--end-token", options.data.end_token, "Of packed tokens: the last token of each document");
  command.add_option("--documents", options.data.documents,
                     "Likewise: a .npy of whole numbers of 8 bytes, where each document begins, or ends");
}

}  // namespace

void AddFeedServe(CLI::App& feed, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();  // lives as long as the callbacks of the parser
  feed::ServiceOptions& options = flags->service;
  options.threads = std::max(1U, std::thread::hardware_concurrency());
  CLI::App* command = feed.add_subcommand("serve", "Prepare a data set for all jobs of this machine, until stopped");
  command
      ->add_option("--data", options.data.path,
                   "Directory of images or sounds, tar shards, or another data set; a path or an http(s):// URL, "
                   "with braces such as train-{000..146}.tar, or a list: shards.txt, index.json; or "
                   "feed://HOST:PORT, batches of a service there that has --listen")
      ->required();
  command->add_option("--name", options.name, "What loaders call it; default: the name of the directory or file");
  command
      ->add_option("--ring-memory", options.ring_bytes,
                   "Memory for the batches of all jobs together; default: half of the machine's")
      ->transform(Size());
  command
      ->add_option("--patience", options.data.patience.value,
                   "Seconds that a server which doesn't answer is waited for")
      ->check(Between(0.0, 86'400.0))
      ->capture_default_str();
  AddSocket(*command, options.socket);
  command->add_option("--listen", flags->listen,
                      "HOST:PORT where other machines get batches, by their --data feed://HOST:PORT; beyond loopback a "
                      "--token-file is needed");
  command->add_option("--token-file", flags->token_file, "File with the token that is given, or wanted, there");
  AddPreparing(*command->add_option_group("preparing", "How items are made; not of feed://"), *flags);
  command->footer("Example: lockstep feed serve --data /data/imagenet/train --name imagenet --cache 16G");
  command->callback([command, flags, &exit_code] {
    const absl::Status served = Serve(*flags, command->get_option_group("preparing")->count_all() > 0);
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
    const top::FeedOptions options{socket, [socket] { return feed::AskStatus(socket); }};
    const bool terminal = isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1;
    const absl::Status done = flags->once || !terminal ? top::PrintFeedOnce(options) : top::WatchFeed(options);
    exit_code = done.ok() ? 0 : PrintError(done);
  });
}

}  // namespace lockstep::cli
