#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/file.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/synth/chance.h"
#include "lockstep/synth/ddp.h"
#include "lockstep/synth/job.h"
#include "lockstep/synth/pipeline_files.h"
#include "lockstep/synth/telemetry.h"
#include "lockstep/trace/record_file.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_meta.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::cli {
namespace {

template <typename Shape>
struct SimulateFlags {
  std::string out;
  Shape shape;
  std::vector<std::string> faults;
  uint64_t seed = 1;
  bool json = false;
};
struct SimulateTraceFlags : SimulateFlags<synth::JobShape> {
  bool kineto = false;
  synth::KinetoEra era = synth::KinetoEra::kBase;
};

CLI::Option* AddEra(CLI::App& command, synth::KinetoEra& era) {
  static const std::map<std::string, synth::KinetoEra> kEras = {{"micros", synth::KinetoEra::kMicros},
                                                                {"decimals", synth::KinetoEra::kDecimals},
                                                                {"base", synth::KinetoEra::kBase}};
  return command
      .add_option_function<std::string>(
          "--era", [&era](const std::string& name) { era = kEras.at(name); },
          "How the profiler writes times: micros (until 2024), decimals (2024), base (today)")
      ->check(CLI::IsMember({"micros", "decimals", "base"}));
}
using SimulateKinetoFlags = SimulateFlags<synth::DdpShape>;

template <typename Fault>
absl::StatusOr<std::vector<Fault>> ParseFaults(const std::vector<std::string>& texts,
                                               absl::StatusOr<Fault> (*parse)(const std::string&)) {
  std::vector<Fault> faults;
  for (const std::string& text : texts) {
    LS_ASSIGN_OR_RETURN(faults.emplace_back(), parse(text));
  }
  return faults;
}

template <typename Fault>
Json FaultsJson(const std::vector<Fault>& faults, Json (*to_json)(const Fault&)) {
  Json json = Json::array();
  for (const Fault& fault : faults) json.push_back(to_json(fault));
  return json;
}

// Its profiler files would stay there, beside those of this job.
absl::Status CheckNoLargerJob(const std::string& directory, int ranks) {
  const std::string next = fmt::format("{}/rank-{}.json.gz", directory, ranks);
  if (!std::filesystem::exists(next)) return absl::OkStatus();
  return InvalidArgument("{} is of a job of more than {} ranks; expected another directory, or an empty one", next,
                         ranks);
}

absl::StatusOr<Json> SimulateTrace(const SimulateTraceFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::vector<synth::Fault> faults, ParseFaults(flags.faults, synth::ParseFault));
  LS_ASSIGN_OR_RETURN(const trace::StragglerRows rows, synth::Generate(flags.shape, faults, flags.seed));
  if (flags.kineto) LS_RETURN_IF_ERROR(CheckNoLargerJob(flags.out, flags.shape.dp * flags.shape.pp));
  LS_RETURN_IF_ERROR(MakeDirectory(flags.out));
  Json report = {{"rows", rows.size()},
                 {"steps", rows.steps.size()},
                 {"seed", flags.seed},
                 {"faults", FaultsJson(faults, synth::FaultJson)}};
  LS_RETURN_IF_ERROR(trace::WriteStragglerCsv(flags.out + "/trace.csv.gz", rows));
  LS_RETURN_IF_ERROR(trace::WriteStragglerMeta(flags.out + "/meta.yaml", synth::MetaOf(flags.shape)));
  if (flags.kineto) LS_RETURN_IF_ERROR(synth::WritePipelineFiles(flags.out, flags.shape, rows, flags.era));
  LS_RETURN_IF_ERROR(trace::WriteText(flags.out + "/labels.json", RenderJson(report)));
  return report;
}

void AddTrace(CLI::App& simulate, int& exit_code) {
  auto flags = std::make_shared<SimulateTraceFlags>();  // lives as long as the callbacks of the parser
  synth::JobShape& shape = flags->shape;
  CLI::App* command = simulate.add_subcommand(
      "trace", "The trace of a pipelined, data-parallel job with planted faults: trace.csv.gz, meta.yaml, labels.json");
  command->add_option("DIR", flags->out, "Directory to write into")->required();
  command->add_option("--dp", shape.dp, "Data-parallel ranks")->capture_default_str();
  command->add_option("--pp", shape.pp, "Pipeline stages")->capture_default_str();
  command->add_option("--tp", shape.tp, "Tensor-parallel ranks")->capture_default_str();
  command->add_option("--vpp", shape.vpp, "Model chunks per stage (interleaved pipeline)")->capture_default_str();
  command->add_option("--microbatches", shape.microbatches, "Per step and data-parallel rank")->capture_default_str();
  command->add_option("--steps", shape.steps, "Training steps")->capture_default_str();
  command->add_option("--forward", shape.forward.value, "Seconds of a microbatch on a stage")->capture_default_str();
  command->add_option("--backward", shape.backward.value, "The same, backward")->capture_default_str();
  command->add_option("--jitter", shape.jitter, "Standard deviation of the logarithm of every duration")
      ->capture_default_str();
  command->add_flag("--overlapped", shape.overlapped, "Reduce gradients beside the backward pass");
  CLI::Option* kineto =
      command->add_flag("--kineto", flags->kineto, "The PyTorch profiler's files of the same job too: rank-N.json.gz");
  AddEra(*command, flags->era)->needs(kineto);
  command->add_option("--seed", flags->seed, "The same seed gives the same trace")->capture_default_str();
  command->add_option(
      "--fault", flags->faults,
      "KIND[:key=value,...]: worker (dp, stage, factor), transient_worker (dp, stage, factor, steps), stage (stage, "
      "factor), sequence_length (factor), gc (share, seconds), link (dp, stage, seconds), ring (stage, factor), fabric "
      "(factor, steps) or data_loading (dp, seconds); may be given several times");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep simulate trace slow --fault worker:dp=2,stage=1,factor=1.4");
  command->callback([flags, &exit_code] { exit_code = PrintReport(SimulateTrace(*flags), flags->json); });
}

absl::StatusOr<Json> SimulateKineto(const SimulateKinetoFlags& flags) {
  LS_ASSIGN_OR_RETURN(const std::vector<synth::Fault> faults, ParseFaults(flags.faults, synth::ParseFault));
  LS_RETURN_IF_ERROR(CheckNoLargerJob(flags.out, flags.shape.ranks));
  LS_RETURN_IF_ERROR(synth::WriteDdpTraces(flags.out, flags.shape, faults, flags.seed));
  Json report = {{"ranks", flags.shape.ranks},
                 {"steps", flags.shape.steps},
                 {"seed", flags.seed},
                 {"faults", FaultsJson(faults, synth::FaultJson)}};
  LS_RETURN_IF_ERROR(trace::WriteText(flags.out + "/labels.json", RenderJson(report)));
  return report;
}

void AddKineto(CLI::App& simulate, int& exit_code) {
  auto flags = std::make_shared<SimulateKinetoFlags>();  // lives as long as the callbacks of the parser
  synth::DdpShape& shape = flags->shape;
  CLI::App* command = simulate.add_subcommand(
      "kineto", "The PyTorch profiler's files of a data-parallel job with planted faults: rank-N.json.gz, labels.json");
  command->add_option("DIR", flags->out, "Directory to write into")->required();
  command->add_option("--ranks", shape.ranks, "Data-parallel ranks")->capture_default_str();
  command->add_option("--steps", shape.steps, "Training steps")->capture_default_str();
  command->add_option("--kernels", shape.kernels, "Kernels of a step")->capture_default_str();
  command->add_option("--buckets", shape.buckets, "All-reduces of a step")->capture_default_str();
  command->add_option("--jitter", shape.jitter, "Standard deviation of the logarithm of every duration")
      ->capture_default_str();
  command->add_option("--clock-offset", shape.clock_offset.value, "Standard deviation of the ranks' clocks, s")
      ->capture_default_str();
  AddEra(*command, shape.era);
  command->add_option("--seed", flags->seed, "The same seed gives the same files")->capture_default_str();
  command->add_option(
      "--fault", flags->faults,
      "KIND[:key=value,...]: worker (dp, factor), transient_worker (dp, factor, steps), sequence_length (factor), gc "
      "(share, seconds), fabric (factor, steps) or data_loading (dp, seconds); dp is the rank; may be given several "
      "times");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep simulate kineto slow --ranks 16 --fault worker:dp=3,factor=1.3");
  command->callback([flags, &exit_code] { exit_code = PrintReport(SimulateKineto(*flags), flags->json); });
}

struct SimulateTelemetryFlags {
  std::string out, layout = "dp8";
  std::optional<int> ranks;
  double seconds = 60, loss = 0;
  synth::TelemetryShape shape;
  std::vector<std::string> faults;
  uint64_t seed = 1;
  bool json = false;
};

// "tp8,pp8" of 16,384 ranks is "tp8,pp8,dp256".
absl::StatusOr<cluster::Layout> LayoutOf(const SimulateTelemetryFlags& flags) {
  LS_ASSIGN_OR_RETURN(cluster::Layout layout, cluster::ParseLayout(flags.layout));
  if (!flags.ranks || layout.WorldSize() == *flags.ranks) return layout;
  if (layout.dp == 1 && *flags.ranks % layout.WorldSize() == 0) {
    layout.dp = *flags.ranks / layout.WorldSize();
    LS_RETURN_IF_ERROR(layout.Validate());
    return layout;
  }
  return InvalidArgument("layout \"{}\" has {} ranks, --ranks is {}", flags.layout, layout.WorldSize(), *flags.ranks);
}

// A fault where nothing passes would be a healthy job under its name.
absl::Status CheckMet(const std::vector<synth::TelemetryFault>& unmet, const synth::TelemetryShape& shape) {
  if (unmet.empty()) return absl::OkStatus();
  const synth::TelemetryFault& fault = unmet.front();
  const std::string peer = fault.peer < 0 ? "" : fmt::format(" and peer {}", fault.peer);
  return InvalidArgument(
      "fault {}: no message met it; expected a rank{} with messages over the network while it is on: next to each "
      "other in a ring, a tree or a pipeline, on different hosts ({} ranks on each); found rank {}{}, {:g} to {:g} s",
      synth::TelemetryFaultName(fault.kind), peer.empty() ? "" : " and a peer", shape.ranks_per_host, fault.rank, peer,
      fault.from.value, fault.until.value);
}

// A file that is not there yet.
absl::StatusOr<Json> WriteTelemetry(const SimulateTelemetryFlags& flags,
                                    const std::vector<synth::TelemetryFault>& faults, synth::Telemetry& job) {
  LS_ASSIGN_OR_RETURN(trace::RecordFileWriter file, trace::RecordFileWriter::Open(flags.out));
  synth::Chance chance(flags.seed);
  uint64_t records = 0, lost = 0;
  // In pieces, so that a long job of many ranks need not fit into memory.
  constexpr double kPiece = 30;
  for (double at = 0; at < flags.seconds;) {
    at = std::min(at + kPiece, flags.seconds);
    job.Run(Seconds{at});
    for (trace::TrailSnapshot& snapshot : job.Take()) {
      const size_t gone =
          std::erase_if(snapshot.ended, [&](const ls_record&) { return chance.Uniform() < flags.loss; });
      snapshot.missed += gone;
      lost += gone;
      records += snapshot.ended.size();
      LS_RETURN_IF_ERROR(file.Write(snapshot));
    }
  }
  LS_RETURN_IF_ERROR(CheckMet(job.Unmet(), flags.shape));
  return Json{{"file", flags.out},     {"ranks", flags.shape.layout.WorldSize()},
              {"records", records},    {"lost", lost},
              {"seed", flags.seed},    {"faults", FaultsJson(faults, synth::TelemetryFaultJson)},
              {"stuck", job.IsStuck()}};
}

absl::StatusOr<Json> SimulateTelemetry(SimulateTelemetryFlags flags) {
  LS_ASSIGN_OR_RETURN(flags.shape.layout, LayoutOf(flags));
  LS_ASSIGN_OR_RETURN(const std::vector<synth::TelemetryFault> faults,
                      ParseFaults(flags.faults, synth::ParseTelemetryFault));
  for (const synth::TelemetryFault& fault : faults)
    if (fault.from.value >= flags.seconds)
      return InvalidArgument("fault {}: from is {:g} s, and the job ends after {:g}; expected less, or more --seconds",
                             synth::TelemetryFaultName(fault.kind), fault.from.value, flags.seconds);
  LS_ASSIGN_OR_RETURN(synth::Telemetry job, synth::Telemetry::Create(flags.shape, faults, flags.seed));
  if (std::filesystem::exists(flags.out)) return InvalidArgument("{}: is there already; name another file", flags.out);
  absl::StatusOr<Json> written = WriteTelemetry(flags, faults, job);
  if (!written.ok()) unlink(flags.out.c_str());  // or it would stand in the way of the next try
  return written;
}

void AddTelemetry(CLI::App& simulate, int& exit_code) {
  auto flags = std::make_shared<SimulateTelemetryFlags>();  // lives as long as the callbacks of the parser
  synth::TelemetryShape& shape = flags->shape;
  CLI::App* command = simulate.add_subcommand(
      "telemetry", "What the collectors of a large job would note, with planted faults: a file that diagnose reads");
  command->add_option("FILE", flags->out, "File to write; name it *.records")->required();
  command->add_option("--layout", flags->layout, "Sizes of tp, cp, pp, ep and dp")->capture_default_str();
  command->add_option("--ranks", flags->ranks, "All of them; dp follows from it where the layout has none");
  command->add_option("--seconds", flags->seconds, "Of the job")->check(Between(1e-3, 1e7))->capture_default_str();
  command->add_option("--ports", shape.ports, "Network ports of a rank")->capture_default_str();
  command->add_option("--ranks-per-host", shape.ranks_per_host, "Inside of a host no network has a part")
      ->capture_default_str();
  command->add_option("--microbatches", shape.microbatches, "Per step")->capture_default_str();
  command->add_option("--forward", shape.forward.value, "Seconds of a microbatch on a stage")->capture_default_str();
  command->add_option("--backward", shape.backward.value, "The same, backward")->capture_default_str();
  command->add_option("--jitter", shape.jitter, "Standard deviation of the logarithm of every computation")
      ->capture_default_str();
  command->add_option("--clock-offset", shape.clock_offset.value, "Standard deviation of the hosts' clocks, s")
      ->capture_default_str();
  command->add_option("--sharded-layers", shape.sharded_layers,
                      "Parameters are sharded in so many layers (FSDP, ZeRO-3): gathered before each, their gradients "
                      "reduced behind it");
  command->add_flag("--trees", shape.trees, "Data-parallel collectives go over trees, not rings");
  command->add_option("--loss", flags->loss, "Share of the records that is lost")->check(Between(0.0, 1.0));
  command->add_option("--seed", flags->seed, "The same seed gives the same file")->capture_default_str();
  command->add_option(
      "--fault", flags->faults,
      "KIND[:key=value,...]: slow_rank (rank, factor), slow_link, slow_block, slow_block_out, slow_block_in (rank, "
      "peer, port, factor), slow_sender, slow_receiver (rank, port, factor), stopped, lost_message, deadlock, "
      "mismatch, skipped (rank); and of healthy jobs gc (share, seconds), checkpoint, evaluation (seconds), lengths, "
      "warm_up, "
      "rotating, everybody (factor), pause (seconds). All but warm_up and pause take from, until and every, in s, "
      "pause "
      "from; may be given several times");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer(
      "Example: lockstep simulate telemetry slow.records --ranks 1024 --layout tp8,pp4 --fault "
      "slow_rank:rank=13,factor=1.2");
  command->callback([flags, &exit_code] { exit_code = PrintReport(SimulateTelemetry(*flags), flags->json); });
}

}  // namespace

void AddSimulate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("simulate", "Jobs that never ran, to calibrate with");
  command->require_subcommand(1);
  AddTrace(*command, exit_code);
  AddKineto(*command, exit_code);
  AddTelemetry(*command, exit_code);
}

}  // namespace lockstep::cli
