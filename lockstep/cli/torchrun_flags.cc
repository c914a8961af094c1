#include "lockstep/cli/torchrun_flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <set>
#include <vector>

#include "lockstep/base/host.h"
#include "lockstep/base/number.h"
#include "lockstep/base/split.h"
#include "lockstep/cli/slurm.h"
#include "lockstep/cli/torchrun_values.h"
#include "lockstep/node/endpoint.h"

namespace lockstep::cli {
namespace {

struct Option {
  const char* name;  // with dashes; underscores are accepted too
  const char* letter;
  bool is_switch;
  const char* help;
  const char* without_effect;  // why it changes nothing here; nullptr: it does
};

constexpr const char* kNoRendezvous = "one node needs no rendezvous";
constexpr int kStaticPort = 29500, kDynamicPort = 29400;  // as torchrun
constexpr std::array kOptions = {
    Option{"nnodes", "", false, "Nodes of the job, N or MIN:MAX; default 1", nullptr},
    Option{"nproc-per-node", "", false, "Ranks on this node: a number, auto, cpu or gpu (one per processor or GPU)",
           nullptr},
    Option{"node-rank", "", false, "Rank of this node; under the static backend node 0 starts the coordinator",
           nullptr},
    Option{"max-restarts", "", false, "Restarts in the life of the run; default 1000", nullptr},
    Option{"module", "-m", true, "SCRIPT is a module name, as in python -m", nullptr},
    Option{"no-python", "", true, "SCRIPT is a program, not a Python script", nullptr},
    Option{"run-path", "", true,
           "Accepted: a script always runs as __main__ of its own interpreter; wins over --no-python", nullptr},
    Option{"start-method", "", false, "auto, zygote (fork from a process that has imported torch) or exec", nullptr},
    Option{"role", "", false, "ROLE_NAME of the workers", nullptr},
    Option{"virtual-local-rank", "", true, "LOCAL_RANK is 0 everywhere, and each rank sees its GPU as device 0",
           nullptr},
    Option{"master-addr", "", false,
           "One node: MASTER_ADDR of the workers, an address of this machine; several: the host of --rdzv-endpoint",
           nullptr},
    Option{"master-port", "", false, "MASTER_PORT of the first epoch; default: any free one", nullptr},
    Option{"local-addr", "", false, "Several nodes: the address of this one for the others; one node: as --master-addr",
           nullptr},
    Option{"standalone", "", true, "One node", nullptr},
    Option{"rdzv-backend", "", false, "static: node 0 leads; else whoever has the endpoint's address", nullptr},
    Option{"rdzv-endpoint", "", false,
           "HOST[:PORT] where the nodes meet; with one node, of the store under the static backend", nullptr},
    Option{"rdzv-id", "", false, "TORCHELASTIC_RUN_ID; default: the job's name on one node, none on several", nullptr},
    Option{"rdzv-conf", "", false, "join_timeout=SECONDS: how long a node waits for the others; default 600", nullptr},
    Option{"log-dir", "", false, "Folder for torchrun's layout of logs and error files", nullptr},
    Option{"redirects", "-r", false, "Streams that go to files: 0, 1 (stdout), 2 (stderr), 3, or RANK:N,RANK:N",
           nullptr},
    Option{"tee", "-t", false, "The same, but to files and to the console", nullptr},
    Option{"local-ranks-filter", "", false, "Ranks that the console shows, such as 0,1", nullptr},
    Option{"signals-to-handle", "", false, "Signals that end the job; default SIGTERM,SIGINT,SIGHUP,SIGQUIT", nullptr},
    Option{"logs-specs", "", false, "Only \"default\"", nullptr},
    Option{"monitor-interval", "", false, "Accepted", "nothing is polled: an exit is heard at once"},
    Option{"numa-binding", "", false, "Accepted", "workers are not bound to processors"},
    Option{"event-log-handler", "", false, "Accepted", "events go to the run's journal, see `lockstep incidents`"},
    Option{"duplicate-stdout-filters", "", false, "Accepted", "nothing is filtered"},
    Option{"duplicate-stderr-filters", "", false, "Accepted", "nothing is filtered"},
};

std::string Underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// "-m,--no-python,--no_python"
std::string Names(const Option& option) {
  const std::string dashed = std::string("--") + option.name;
  const std::string underscored = "--" + Underscored(option.name);
  std::string names = *option.letter != '\0' ? std::string(option.letter) + "," + dashed : dashed;
  return underscored == dashed ? names : names + "," + underscored;
}

std::string Variable(const Option& option) {
  std::string name = "PET_" + Underscored(option.name);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

}  // namespace

void TorchrunFlags::Declare(CLI::App& run) {
  run_ = &run;
  for (const Option& option : kOptions) {
    CLI::Option* declared = option.is_switch ? run.add_flag(Names(option), switches_[option.name], option.help)
                                             : run.add_option(Names(option), texts_[option.name], option.help);
    declared->envname(Variable(option))->group("As torchrun (docs/from-torchrun.md)");
  }
}

bool TorchrunFlags::Given(const std::string& name) const { return run_->count("--" + name) > 0; }
bool TorchrunFlags::On(const std::string& name) const { return switches_.at(name); }
std::string TorchrunFlags::Text(const std::string& name) const { return texts_.at(name); }

absl::StatusOr<int> TorchrunFlags::Number(const std::string& name, int least, int otherwise) const {
  if (!Given(name)) return otherwise;
  const std::optional<int> value = WholeNumber<int>(Text(name));
  if (!value || *value < least)
    return InvalidArgument("--{} must be a number, at least {}, found \"{}\"", name, least, Text(name));
  return *value;
}

absl::Status TorchrunFlags::Apply(node::RunOptions& options) const {
  absl::Status status = ApplyAll(options);
  const std::string set = SetByVariables();
  if (status.ok() || set.empty()) return status;
  return InvalidArgument("{} (the environment says{})", Message(status), set);
}

// " PET_NNODES=2 PET_ROLE=x": what nobody typed, and is easily overlooked.
std::string TorchrunFlags::SetByVariables() const {
  std::string set;
  for (const Option& option : kOptions) {
    const char* value = std::getenv(Variable(option).c_str());
    if (value != nullptr && (option.is_switch || Text(option.name) == value))
      set += fmt::format(" {}={}", Variable(option), value);
  }
  return set;
}

absl::StatusOr<NodeCount> ParseNodeCount(const std::string& text) {
  const size_t colon = text.find(':');
  const std::optional<int> least = WholeNumber<int>(text.substr(0, colon));
  const std::optional<int> most = colon == std::string::npos ? least : WholeNumber<int>(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least)
    return InvalidArgument("--nnodes must be N or MIN:MAX, at least 1, found \"{}\"", text);
  return NodeCount{*least, *most};
}

absl::Status TorchrunFlags::ApplyAll(node::RunOptions& options) const {
  LS_RETURN_IF_ERROR(ApplyNodes(options));
  LS_RETURN_IF_ERROR(ApplyRanks(options));
  LS_RETURN_IF_ERROR(ApplyRendezvous(options));
  LS_RETURN_IF_ERROR(ApplyStart(options));
  LS_RETURN_IF_ERROR(ApplyOutput(options));
  LS_RETURN_IF_ERROR(ApplySignals(options));
  NoteWithoutEffect(options);
  return absl::OkStatus();
}

absl::Status TorchrunFlags::ApplyNodes(node::RunOptions& options) const {
  node::Nodes& nodes = options.nodes;
  if (Given("nnodes")) {
    LS_ASSIGN_OR_RETURN(const NodeCount count, ParseNodeCount(Text("nnodes")));
    nodes.least = count.least;
    nodes.most = count.most;
  }
  const std::optional<SlurmStep> step = On("standalone") ? std::nullopt : FindSlurmStep();
  if (step && !Given("nnodes") && nodes.most == 1) nodes.least = nodes.most = step->nodes;
  if (On("standalone") && nodes.most > 1)
    options.notices.push_back(fmt::format("--nnodes {} has no effect: --standalone is one node", Text("nnodes")));
  if (On("standalone")) nodes.least = nodes.most = 1;
  if (!Given("nnodes") && !On("standalone") && !nodes.endpoint.empty() && nodes.most == 1)
    nodes.least = nodes.most = node::kAsCoordinatorSays;
  if (!nodes.several() && !nodes.endpoint.empty())
    return InvalidArgument(
        "--coordinator {}: it leads a job of several nodes, and this one has one; leave it out, or {}", nodes.endpoint,
        On("standalone") ? "--standalone" : "--nnodes 1");
  const bool first = IsStatic() && nodes.most > 1 && nodes.endpoint.empty();  // torchrun's default
  LS_ASSIGN_OR_RETURN(nodes.own_rank, Number("node-rank", 0, first ? 0 : -1));
  if (nodes.most != node::kAsCoordinatorSays && nodes.own_rank >= nodes.most)
    return InvalidArgument("--node-rank {} is not below --nnodes {}", nodes.own_rank, nodes.most);
  if (step && nodes.several() && nodes.own_name.empty()) nodes.own_name = step->node_name;
  if (step && step->nodes == nodes.most) FollowSlurm(*step, nodes);
  LS_RETURN_IF_ERROR(ApplyEndpoint(nodes));
  if (!nodes.several() && nodes.expected.standbys > 0)
    return InvalidArgument("--standbys {} is for a job of several nodes: say how many with --nnodes",
                           nodes.expected.standbys);
  if (!nodes.several()) {
    nodes.endpoint.clear();
  } else if (nodes.endpoint.empty()) {
    if (nodes.least > 1)
      return InvalidArgument(
          "--nnodes {}: say where the nodes meet, with --rdzv-endpoint HOST:PORT or --coordinator HOST:PORT",
          nodes.least);
    options.notices.push_back(fmt::format(
        "--nnodes {}: the job runs on this one node, for no --rdzv-endpoint says where others are", Text("nnodes")));
    nodes.most = 1;
  }
  return absl::OkStatus();
}

// The nodes have the ranks that Slurm gave them, and meet at the first, on a port of the job's own.
void TorchrunFlags::FollowSlurm(const SlurmStep& step, node::Nodes& nodes) const {
  if (!Given("node-rank")) nodes.own_rank = step.node;
  if (!nodes.endpoint.empty() || Given("rdzv-endpoint") || Given("master-addr")) return;
  nodes.endpoint = fmt::format("{}:{}", step.first_node, kDynamicPort + step.job % 1000);
  nodes.may_lead = nodes.must_lead = nodes.own_rank == 0;
}

bool TorchrunFlags::IsStatic() const { return !Given("rdzv-backend") || Text("rdzv-backend") == "static"; }

// Where the coordinator is, and whether it may be here. Static: node 0 has it. Else: whoever has the address.
absl::Status TorchrunFlags::ApplyEndpoint(node::Nodes& nodes) const {
  if (!nodes.several()) return absl::OkStatus();
  std::string flag = "--coordinator", text = nodes.endpoint;
  if (nodes.must_lead) return absl::OkStatus();  // Slurm has said it all
  nodes.may_lead = text.empty();
  if (text.empty() && Given("rdzv-endpoint")) {
    flag = "--rdzv-endpoint";
    text = Text("rdzv-endpoint");
  } else if (text.empty() && Given("master-addr")) {
    flag = "--master-addr";
    text = Text("master-addr") + (Given("master-port") ? ":" + Text("master-port") : "");
  }
  if (text.empty()) return absl::OkStatus();
  if (flag == "--coordinator" && text.find(',') != std::string::npos) return ApplyCoordinators(nodes);
  std::optional<Endpoint> endpoint = ParseEndpoint(text);
  if (!endpoint) return InvalidArgument("{} must be HOST[:PORT], found \"{}\"", flag, text);
  if (endpoint->port.value_or(0) == 0) endpoint->port = IsStatic() ? kStaticPort : kDynamicPort;
  nodes.endpoint = EndpointText(*endpoint);
  if (!nodes.may_lead) return absl::OkStatus();
  nodes.must_lead = IsStatic() && nodes.own_rank == 0;
  nodes.may_lead = IsStatic() ? nodes.must_lead : CheckOwnAddress(flag, endpoint->host).ok();
  return absl::OkStatus();
}

// Several, one of which leads.
absl::Status TorchrunFlags::ApplyCoordinators(node::Nodes& nodes) const {
  for (const std::string& text : node::SplitEndpoints(nodes.endpoint)) {
    const std::optional<Endpoint> endpoint = ParseEndpoint(text);
    if (!endpoint || endpoint->port.value_or(0) == 0)
      return InvalidArgument("--coordinator must be HOST:PORT,HOST:PORT, found \"{}\" in it", text);
  }
  return absl::OkStatus();
}

absl::Status TorchrunFlags::ApplyRanks(node::RunOptions& options) const {
  if (Given("nproc-per-node")) {
    LS_ASSIGN_OR_RETURN(options.ranks, RankCount(Text("nproc-per-node")));
  }
  if (options.ranks < 1 || options.ranks > 64)
    return InvalidArgument("--nproc-per-node must be 1 to 64, found {}", options.ranks);
  if (!Given("max-restarts")) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(options.max_restarts, Number("max-restarts", 0, 0));
  return absl::OkStatus();
}

absl::Status TorchrunFlags::ApplyRendezvous(node::RunOptions& options) const {
  agent::Torchrun& torchrun = options.torchrun;
  if (!On("standalone")) torchrun.run_id = Text("rdzv-id");
  if (Given("rdzv-conf")) LS_RETURN_IF_ERROR(ApplyRendezvousConf(Text("rdzv-conf"), options));
  if (options.nodes.several()) {
    // The coordinator has the port that was named; stores are where they are needed, each on a fresh one.
    torchrun.master_addr = Text("local-addr");  // empty: found when the nodes have met
    return Given("local-addr") ? CheckOwnAddress("--local-addr", torchrun.master_addr) : absl::OkStatus();
  }
  std::string flag = Given("master-addr") ? "master-addr" : "local-addr";
  if (Given(flag)) torchrun.master_addr = Text(flag);
  LS_ASSIGN_OR_RETURN(torchrun.master_port, Number("master-port", 0, 0));
  if (Given("rdzv-endpoint") && IsStatic() && !On("standalone")) {
    flag = "rdzv-endpoint";
    const std::optional<Endpoint> endpoint = ParseEndpoint(Text(flag));
    if (!endpoint) return InvalidArgument("--rdzv-endpoint must be HOST[:PORT], found \"{}\"", Text(flag));
    torchrun.master_addr = endpoint->host;
    torchrun.master_port = endpoint->port.value_or(0);
  }
  if (torchrun.master_port > 65535)
    return InvalidArgument("--master-port must be 0 to 65535, found {}", torchrun.master_port);
  return Given(flag) ? CheckOwnAddress("--" + flag, torchrun.master_addr) : absl::OkStatus();
}

// "join_timeout=600,timeout=900": torchrun's names for how long a node waits for the others.
absl::Status TorchrunFlags::ApplyRendezvousConf(const std::string& conf, node::RunOptions& options) {
  std::string without_effect;
  for (const std::string& entry : Split(conf, ',')) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) return InvalidArgument("--rdzv-conf must be NAME=VALUE,..., found \"{}\"", conf);
    const std::string name = entry.substr(0, equals);
    if (name != "join_timeout" && name != "timeout") {
      without_effect += (without_effect.empty() ? "" : ",") + entry;
      continue;
    }
    const std::optional<int> seconds = WholeNumber<int>(entry.substr(equals + 1));
    if (!seconds || *seconds < 1) return InvalidArgument("--rdzv-conf {} must be seconds, at least 1", entry);
    options.nodes.join_timeout = Seconds{static_cast<double>(*seconds)};
  }
  if (!without_effect.empty() && options.nodes.several())  // of one node all of it has none, which is said elsewhere
    options.notices.push_back(
        fmt::format("--rdzv-conf {} has no effect: the coordinator knows no more than join_timeout", without_effect));
  return absl::OkStatus();
}

absl::Status TorchrunFlags::ApplyStart(node::RunOptions& options) const {
  if (On("module")) options.module = true;
  options.torchrun.no_python = On("no-python") && !On("run-path");
  options.torchrun.virtual_local_rank = On("virtual-local-rank");
  if (Given("role")) options.torchrun.role = Text("role");
  if (options.module && options.torchrun.no_python)
    return InvalidArgument("--module and --no-python exclude each other: a module needs Python; leave one out");
  const std::string method = Text("start-method");
  if (method == "spawn" || method == "fork" || method == "forkserver") {
    options.notices.push_back(fmt::format(
        "--start-method {} has no effect: it is about Python functions; of workers, it is auto, zygote or exec",
        method));
  } else if (Given("start-method")) {
    LS_ASSIGN_OR_RETURN(options.start_method, agent::StartMethodFromName(method));
  }
  return absl::OkStatus();
}

// Empty: all.
absl::StatusOr<std::set<int>> TorchrunFlags::RanksShown(node::RunOptions& options) const {
  const std::string flag = "--local-ranks-filter", text = Text("local-ranks-filter");
  std::set<int> filter;
  for (const std::string& rank : Split(text, ',')) {
    const std::optional<int> number = WholeNumber<int>(rank);
    if (!number || *number < 0) return InvalidArgument("{} must be ranks such as 0,1, found \"{}\"", flag, rank);
    filter.insert(*number);
  }
  if (!filter.empty() && *filter.begin() >= options.ranks)
    return InvalidArgument("{} {} leaves no rank of this node, which has 0 to {}", flag, text, options.ranks - 1);
  NoteSurplus(flag, text, filter, options.ranks, options.notices);
  return filter;
}

absl::Status TorchrunFlags::ApplyOutput(node::RunOptions& options) const {
  if (Given("logs-specs") && Text("logs-specs") != "default") {
    return InvalidArgument("--logs-specs {}: plug-ins of torchrun can't be loaded; leave it out or use \"default\"",
                           Text("logs-specs"));
  }
  options.torchrun.log_dir = Text("log-dir");
  const char* prefix = std::getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (prefix != nullptr && *prefix != '\0') options.torchrun.line_prefix = prefix;
  LS_ASSIGN_OR_RETURN(const std::vector<int> redirects,
                      Masks("--redirects", Text("redirects"), options.ranks, options.notices));
  LS_ASSIGN_OR_RETURN(const std::vector<int> tee, Masks("--tee", Text("tee"), options.ranks, options.notices));
  LS_ASSIGN_OR_RETURN(const std::set<int> filter, RanksShown(options));
  if (!Given("redirects") && !Given("tee") && filter.empty()) return absl::OkStatus();
  for (size_t rank = 0; rank < redirects.size(); ++rank) {
    const bool shown = filter.empty() || filter.contains(static_cast<int>(rank));
    options.torchrun.streams.push_back({redirects[rank] | tee[rank], tee[rank], shown});
  }
  return absl::OkStatus();
}

absl::Status TorchrunFlags::ApplySignals(node::RunOptions& options) const {
  // sbatch --signal=USR1@60 is how Slurm says that the time is nearly up: save, then leave.
  const bool has_it = std::ranges::count(options.stop_signals, SIGUSR1) > 0;  // as the run began
  if (!Given("signals-to-handle") && !has_it && std::getenv("SLURM_JOB_ID") != nullptr)
    options.stop_signals.push_back(SIGUSR1);
  if (!Given("signals-to-handle")) return absl::OkStatus();
  options.stop_signals.clear();
  for (const std::string& name : Split(Text("signals-to-handle"), ',')) {
    LS_ASSIGN_OR_RETURN(const int number, SignalNumber(name));
    options.stop_signals.push_back(number);
  }
  return absl::OkStatus();
}

void TorchrunFlags::NoteWithoutEffect(node::RunOptions& options) const {
  const auto note = [&](const std::string& name, const char* why) {
    options.notices.push_back(fmt::format("--{} {} has no effect: {}", name, Text(name), why));
  };
  for (const Option& option : kOptions) {
    if (option.without_effect != nullptr && Given(option.name)) note(option.name, option.without_effect);
  }
  if (options.nodes.several()) return;
  if (Given("rdzv-conf")) note("rdzv-conf", kNoRendezvous);
  const bool dynamic = On("standalone") || !IsStatic();
  if (Given("rdzv-backend") && dynamic) note("rdzv-backend", kNoRendezvous);
  if (Given("rdzv-endpoint") && dynamic) note("rdzv-endpoint", kNoRendezvous);
  if (Given("rdzv-id") && On("standalone")) note("rdzv-id", "--standalone chooses one");
}

}  // namespace lockstep::cli
