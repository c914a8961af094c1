#include "lockstep/agent/probing.h"

#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>

#include "lockstep/base/background_thread.h"
#include "lockstep/base/child.h"
#include "lockstep/base/host.h"
#include "lockstep/keep/connection.h"
#include "lockstep/probe/neighbours.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kTests{5};
constexpr char kTemporary[] = "/tmp";
constexpr Seconds kPatience{90};  // a disk or a driver that hangs is given up by the tests themselves, long before

// Of a machine on which the tests themselves don't live, another one may be to blame: a full memory, a wrong binary.
incident::Finding Broken(const std::string& node, std::string why) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kMachineFault;
  finding.suspects = {{incident::Suspect::Kind::kNode, node}};
  finding.evidence = {std::move(why)};
  return finding;
}

// Beside the stacks of the incident, for `lockstep probe compare`.
void Keep(const RunSpec& spec, int64_t incident, const std::string& report) {
  const std::string folder = fmt::format("{}/incident_{}", spec.run_dir, incident);
  mkdir(folder.c_str(), 0700);
  (void)WriteFileAtomically(fmt::format("{}/probe.json", folder), report);
}

// The disk that the job's programs use for what is not worth a name.
std::string TemporaryFolder() {
  const char* folder = getenv("TMPDIR");
  return folder != nullptr && *folder != 0 ? folder : kTemporary;
}

// A node that listens in no ring of which it was told is not in it.
std::vector<std::string> WordsOf(const RunSpec& spec, const control::Probe& command, int ring_port) {
  std::vector<std::string> words = {
      OwnBinary().value_or(""), "probe",  "--json",      "--seconds", fmt::format("{:g}", kTests.value), "--dir",
      TemporaryFolder(),        "--node", spec.node_name};
  const std::string self = EndpointText({spec.address, ring_port});
  if (std::find(command.ring.begin(), command.ring.end(), self) == command.ring.end()) return words;
  const std::string nodes = fmt::format("{}", fmt::join(command.ring, ","));
  words.insert(words.end(), {"--peers", nodes, "--listen", self, "--listen-fd", std::to_string(kHandedOver)});
  return words;
}

control::Probed RunTests(const RunSpec& spec, const control::Probe& command, const Fd& ring, int ring_port,
                         const std::stop_token& stop) {
  control::Probed answer{command.epoch, command.rung};
  const absl::StatusOr<ChildEnd> end =
      RunChild(WordsOf(spec, command, ring_port),
               {.at_most = std::min(command.at_most, kPatience), .hands_over = ring.get()}, stop);
  if (!end.ok()) {
    answer.findings = {Broken(spec.node_name, Message(end.status()))};
  } else if (end->signal != 0 || end->out.empty()) {
    answer.findings = {Broken(spec.node_name, HowItEnded("the tests of the machine", *end))};
  } else {
    Keep(spec, command.incident, end->out);
    answer.reports = {end->out};
  }
  return answer;
}

}  // namespace

Probing::~Probing() {
  Stop();
  answers_.Close();
}

void Probing::Stop() {
  ++turn_;
  asked_.reset();
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

// Each test has a socket of its own: what knocked at an earlier one's door is none of its business.
void Probing::OpenRing(const RunSpec& spec) {
  absl::StatusOr<Fd> ring = keep::ListenOnFreePort(IsLoopback(spec.address), ring_port_);
  ring_ = ring.ok() ? *std::move(ring) : Fd();
}

void Probing::Begin(const RunSpec& spec, const control::Probe& command, Done done) {
  const std::pair question(command.epoch, command.rung);
  if (asked_ == question) return;
  Stop();
  asked_ = question;
  const int port = ring_port();
  thread_ = std::jthread([this, spec, command, done = std::move(done), turn = turn_, port,
                          ring = std::move(ring_)](const std::stop_token& stop) {
    TakeNoSignals();
    answers_.Post([this, done, turn, answer = RunTests(spec, command, ring, port, stop)] {
      if (turn == turn_) done(answer);
    });
  });
  if (port != 0) OpenRing(spec);
}

}  // namespace lockstep::agent
