#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/probe/neighbours.h"
#include "lockstep/probe/peer_range.h"
#include "lockstep/probe/run_tests.h"

namespace lockstep::cli {
namespace {

struct ProbeFlags {
  std::string tests, directory = "/tmp", peers, listen, layout = "tp1", node;
  double seconds = 5, wait = 10;
  int repeat = 1, listener = -1;
  bool json = false;
};

struct CompareFlags {
  std::vector<std::string> files;
  std::string history;
  bool learn = false, json = false;
};

absl::StatusOr<Endpoint> PeerOf(const char* flag, const std::string& text) {
  absl::StatusOr<Endpoint> peer = probe::ParsePeer(text);
  if (!peer.ok()) return InvalidArgument("{}: {}", flag, Message(peer.status()));
  return peer;
}

absl::Status TakePeers(const ProbeFlags& flags, probe::TestOptions& options) {
  if (flags.peers.empty() != flags.listen.empty())
    return InvalidArgument("expected both --peers and --listen, or neither");
  for (size_t begin = 0; !flags.peers.empty() && begin <= flags.peers.size();) {
    const size_t end = std::min(flags.peers.find(',', begin), flags.peers.size());
    LS_ASSIGN_OR_RETURN(const Endpoint place, PeerOf("--peers", flags.peers.substr(begin, end - begin)));
    for (const Endpoint& other : options.nodes) {
      if (EndpointText(other) == EndpointText(place))
        return InvalidArgument("--peers: expected each node once, found {} twice", EndpointText(place));
    }
    options.nodes.push_back(place);
    begin = end + 1;
  }
  if (options.nodes.empty()) return absl::OkStatus();
  if (options.nodes.size() < 2) return InvalidArgument("--peers: expected all nodes, at least 2, found 1");
  LS_ASSIGN_OR_RETURN(const Endpoint self, PeerOf("--listen", flags.listen));
  for (size_t i = 0; i < options.nodes.size(); ++i) {
    options.self = i;
    if (EndpointText(options.nodes[i]) == EndpointText(self)) return absl::OkStatus();
  }
  return InvalidArgument("--listen: expected one of --peers, which this node is, found {}", flags.listen);
}

absl::StatusOr<probe::TestOptions> OptionsOf(const ProbeFlags& flags) {
  constexpr double kMostSeconds = 3600;
  probe::TestOptions options{.time{flags.seconds},
                             .node = flags.node,
                             .directory = flags.directory,
                             .repeat = flags.repeat,
                             .listener = flags.listener,
                             .wait{flags.wait}};
  LS_RETURN_IF_ERROR(TakePeers(flags, options));
  LS_ASSIGN_OR_RETURN(options.tests, probe::ParseTests(flags.tests, !options.nodes.empty()));
  const bool all = flags.tests.empty();
  options.has_gpu = !all && std::ranges::find(options.tests, "gpu") != options.tests.end();  // who names it has some
  LS_ASSIGN_OR_RETURN(const cluster::Layout layout, cluster::ParseLayout(flags.layout));
  options.shape = probe::CappedShape(layout);
  for (const auto& [name, seconds] : {std::pair("--seconds", flags.seconds), std::pair("--wait-s", flags.wait)}) {
    if (!(seconds >= 0 && seconds <= kMostSeconds))
      return InvalidArgument("{}: expected 0 to {} s, found {}", name, kMostSeconds, seconds);
  }
  if (flags.repeat < 1) return InvalidArgument("--repeat: expected at least 1, found {}", flags.repeat);
  return options;
}

// Ctrl-C ends the tests within a moment.
absl::StatusOr<probe::NodeReport> RunUntilInterrupted(const probe::TestOptions& options) {
  EndAtInterrupt();
  std::stop_source stop;
  const std::jthread watch([&stop](const std::stop_token& done) {
    constexpr auto kLook = std::chrono::milliseconds(20);
    while (!done.stop_requested() && !Interrupted()) std::this_thread::sleep_for(kLook);
    if (Interrupted()) stop.request_stop();
  });
  return RunTests(options, SystemClock(), stop.get_token());
}

int Probe(const ProbeFlags& flags) {
  const absl::StatusOr<probe::TestOptions> options = OptionsOf(flags);
  if (!options.ok()) return PrintError(options.status());
  const absl::StatusOr<probe::NodeReport> report = RunUntilInterrupted(*options);
  if (!report.ok()) return PrintError(report.status()), kExitNo;
  const Json document = ReportJson(*report);
  PrintReport(document, flags.json);
  return document["ok"].get<bool>() ? 0 : kExitNo;
}

absl::StatusOr<std::vector<probe::NodeReport>> ReadReports(const std::vector<std::string>& files) {
  std::vector<probe::NodeReport> all;
  std::set<std::string> names;
  for (const std::string& file : files) {
    LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    LS_ASSIGN_OR_RETURN(std::vector<probe::NodeReport> reports, probe::ParseReports(text, file));
    if (reports.empty()) return InvalidArgument("{}: expected what lockstep probe --json prints, found nothing", file);
    for (probe::NodeReport& report : reports) {
      if (!names.insert(report.node).second)
        return InvalidArgument("{}: expected each node once, found {} again; give it another name with --node", file,
                               report.node);
      all.push_back(std::move(report));
    }
  }
  return all;
}

std::string LineOf(const probe::NodeReport& report) { return OneLine(ReportJson(report)) + "\n"; }

// Those that nobody suspects and that `history` does not have, a line each, in one write: several may learn at once.
// Returns how many.
absl::StatusOr<int> Learn(const std::string& path, const std::vector<probe::NodeReport>& nodes,
                          const std::vector<probe::NodeReport>& history, const probe::Judgement& judgement) {
  std::set<std::string> suspects, known;
  for (const probe::NodeReport& report : history) known.insert(LineOf(report));
  for (const probe::Finding& finding : judgement.findings)
    suspects.insert(finding.suspects.begin(), finding.suspects.end());
  std::string lines;
  int learnt = 0;
  for (const probe::NodeReport& report : nodes) {
    if (suspects.contains(report.node)) continue;
    const std::string line = LineOf(report);
    if (known.contains(line)) continue;
    lines += line;
    ++learnt;
  }
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return Errno(errno, "{}", path);
  if (write(fd.get(), lines.data(), lines.size()) != static_cast<ssize_t>(lines.size()))
    return Errno(errno, "writing to {}", path);
  return learnt;
}

absl::StatusOr<Json> Comparison(const CompareFlags& flags) {
  if (flags.learn && flags.history.empty()) return InvalidArgument("--learn needs --history FILE");
  LS_ASSIGN_OR_RETURN(const std::vector<probe::NodeReport> nodes, ReadReports(flags.files));
  std::vector<probe::NodeReport> history;
  if (!flags.history.empty() && (!flags.learn || access(flags.history.c_str(), F_OK) == 0)) {
    LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.history));
    LS_ASSIGN_OR_RETURN(history, probe::ParseReports(text, flags.history));
  }
  const probe::Judgement judgement = probe::JudgePeers(nodes, history);
  Json report = JudgementJson(judgement, nodes);
  if (!flags.learn) return report;
  // Where it can't be told who is slow, nobody is known to be healthy.
  int learnt = 0;
  if (judgement.unknown.empty()) {
    LS_ASSIGN_OR_RETURN(learnt, Learn(flags.history, nodes, history, judgement));
  }
  report["learnt"] = learnt;
  return report;
}

int Compare(const CompareFlags& flags) {
  const absl::StatusOr<Json> report = Comparison(flags);
  if (const int code = PrintReport(report, flags.json); code != 0) return code;
  return (*report)["findings"].empty() ? 0 : kExitNo;
}

void AddCompare(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      parent.add_subcommand("compare", "Who is outside what the others measured; exit status 1 if anybody is");
  command->add_option("FILE", flags->files, "What lockstep probe --json printed on each node")->required();
  command->add_option("--history", flags->history, "Earlier reports of healthy nodes, a line each: further peers");
  command->add_flag("--learn", flags->learn,
                    "Append the reports of nodes that are not suspected to the history, each once");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep probe compare node*.json --history healthy.jsonl --learn");
  command->callback([flags, &exit_code] { exit_code = Compare(*flags); });
}

}  // namespace

void AddProbe(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ProbeFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      app.add_subcommand("probe", "Tests this node while no job runs; exit status 1 if something is wrong");
  command->add_option("--tests", flags->tests,
                      "Some of neighbours,memory,gemm,all_to_all,disk,gpu,aligned (default: all that can be run); gpu "
                      "by name fails where there is none");
  command->add_option("--seconds", flags->seconds, "For all tests together; each does its least (default 5)");
  command->add_option("--dir", flags->directory, "Where the disk test writes a file (default /tmp)");
  command->add_option("--peers", flags->peers, "HOST:PORT,...: all nodes of the ring, the same list on each of them");
  command->add_option("--listen", flags->listen, "HOST:PORT: which of them this node is");
  command->add_option("--listen-fd", flags->listener, "A descriptor that listens there already")->needs("--listen");
  command->add_option("--wait-s", flags->wait, "For the neighbours to come (default 10)");
  command->add_option("--layout", flags->layout, "Of the aligned model: tp, pp and dp, each at most 2 (tp2,pp2,dp2)");
  command->add_option("--repeat", flags->repeat, "Run the aligned model at least so often on each core (default 1)");
  command->add_option("--node", flags->node, "Name in the report (default: the host's)");
  command->add_flag("--json", flags->json, "One JSON document on stdout, for lockstep probe compare");
  command->footer("Example: lockstep probe --seconds 5 --dir /data --layout tp2,pp2,dp2 --json > node0.json");
  AddCompare(*command, exit_code);
  command->callback([command, flags, &exit_code] {
    if (command->get_subcommands().empty()) exit_code = Probe(*flags);
  });
}

}  // namespace lockstep::cli
