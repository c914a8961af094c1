#include "lockstep/cluster/job.h"

#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"

namespace lockstep::cluster {
namespace {

void ReadLayout(TableReader& in, Layout& layout) {
  const IntegerRange size{.least = 1};
  in.Integer("tp", size, layout.tp);
  in.Integer("cp", size, layout.cp);
  in.Integer("ep", size, layout.ep);
  in.Integer("dp", size, layout.dp);
  in.Integer("pp", size, layout.pp);
  in.Integer("vpp", size, layout.vpp);
  in.Text("order", layout.order);
  in.Check(layout.Validate());
}

void ReadLimits(TableReader& in, RunFile& run) {
  in.Number("hang_limit_s", Sign::kPositive, run.hang_limit);
  in.Number("blocked_limit_s", Sign::kPositive, run.blocked_limit);
  in.Number("spin_limit_s", Sign::kPositive, run.spin_limit);
  in.Number("first_step_limit_s", Sign::kPositive, run.first_step_limit);
  in.Number("least_stall_s", Sign::kPositive, run.least_stall);
  in.Number("grace_s", Sign::kNotNegative, run.grace);
}

// A path in a job file means the same wherever the command is typed.
void ReadPath(TableReader& in, std::string_view key, const std::string& file, std::optional<std::string>& out) {
  in.Text(key, out);
  if (out && std::filesystem::path(*out).is_relative())
    out = (std::filesystem::path(FolderOf(file)) / *out).lexically_normal();
}

void ReadWebhook(TableReader& in, RunFile& run) {
  in.Text("webhook", run.webhook);
  if (run.webhook && !run.webhook->starts_with("http://") && !run.webhook->starts_with("https://")) {
    in.Fail("webhook", "webhook must begin with http:// or https://, found \"" + *run.webhook + "\"");
  }
}

void ReadCheckpoint(TableReader& in, const std::string& file, RunFile& run) {
  std::optional<int64_t> bytes;
  in.Integer("checkpoint_memory_bytes", {.least = 0}, bytes);
  if (bytes) run.checkpoint_memory = Bytes{static_cast<uint64_t>(*bytes)};
  ReadPath(in, "checkpoint_dir", file, run.checkpoint_dir);
  in.Number("checkpoint_interval_s", Sign::kPositive, run.checkpoint_interval);
  in.Integer("checkpoint_keep", {.least = 1, .most = 1000000}, run.checkpoint_keep);
  in.Number("checkpoint_flush_limit_s", Sign::kPositive, run.checkpoint_flush_limit);
}

void ReadRun(TableReader& in, const std::string& file, RunFile& run) {
  in.Boolean("module", run.module);
  if (run.module.value_or(false)) {
    in.Text("script", run.script);
  } else {
    ReadPath(in, "script", file, run.script);
  }
  in.Texts("args", run.args);
  in.Text("python", run.python);
  in.Text("run", run.run);
  in.Integer("nnodes", {.least = 1, .most = kMaxNodes}, run.nnodes);
  in.Text("coordinator", run.coordinator);
  in.Integer("nproc_per_node", {.least = 1, .most = 64}, run.nproc_per_node);
  in.Integer("max_restarts", {.least = 0}, run.max_restarts);
  in.Integer("no_progress_limit", {.least = 1}, run.no_progress_limit);
  in.OneOf("start_method", {"auto", "zygote", "exec"}, run.start_method);
  in.Boolean("observe_only", run.observe_only);
  ReadLimits(in, run);
  ReadWebhook(in, run);
  in.Text("metrics_host", run.metrics_host);
  in.Integer("metrics_port", {.least = 0, .most = 65535}, run.metrics_port);
  ReadPath(in, "token_file", file, run.token_file);
  ReadCheckpoint(in, file, run);
  in.Texts("feed", run.feed);
  for (std::string& feed : run.feed)
    if (feed.find("://") == std::string::npos) feed = (std::filesystem::path(FolderOf(file)) / feed).lexically_normal();
}

// Reads the spec that `key` names, preset or file, with `read`.
template <typename Spec, typename Read>
void ReadNamed(TableReader& in, std::string_view key, std::string_view kind, const std::string& file,
               const Presets& presets, std::optional<Spec>& out, const Read& read) {
  std::optional<std::string> name;
  in.Text(key, name);
  if (!name) return;
  const absl::StatusOr<std::string> path = presets.Find(kind, *name, FolderOf(file));
  const absl::StatusOr<Spec> spec = path.ok() ? read(*path) : absl::StatusOr<Spec>(path.status());
  if (!spec.ok()) return in.Fail(key, std::string(key) + ": " + Message(spec.status()));
  out = *spec;
}

absl::Status ValidateSplit(const Layout& layout, const Model& model) {
  if (model.heads % layout.tp != 0) {
    return InvalidArgument("layout splits {} heads of {} over tp {}: it must divide them", model.heads, model.name,
                           layout.tp);
  }
  if (model.layers % (int64_t{layout.pp} * layout.vpp) != 0) {
    return InvalidArgument("layout splits {} layers of {} over pp {} * vpp {}: the product must divide them",
                           model.layers, model.name, layout.pp, layout.vpp);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Job::Validate() const {
  if (layout) LS_RETURN_IF_ERROR(layout->Validate());
  if (model) LS_RETURN_IF_ERROR(model->Validate());
  if (cluster) LS_RETURN_IF_ERROR(cluster->Validate());
  if (layout && cluster && layout->WorldSize() > cluster->Accelerators()) {
    return InvalidArgument("layout needs {} ranks, but {} has {} accelerators", layout->WorldSize(), cluster->name,
                           cluster->Accelerators());
  }
  return layout && model ? ValidateSplit(*layout, *model) : absl::OkStatus();
}

absl::StatusOr<Job> ParseJob(std::string_view text, const std::string& file, const Presets& presets) {
  LS_ASSIGN_OR_RETURN(const TomlValue root, ParseToml(text, file));
  Job job;
  TableReader in(root, file);
  in.Require({"name"});
  in.Text("name", job.name);
  ReadNamed(in, "model", "models", file, presets, job.model, ReadModel);
  ReadNamed(in, "cluster", "clusters", file, presets, job.cluster,
            [&](const std::string& path) { return ReadCluster(path, presets); });
  in.Table("layout", [&](TableReader& inner) { ReadLayout(inner, job.layout.emplace()); });
  in.Table("run", [&](TableReader& inner) { ReadRun(inner, file, job.run); });
  // With a malformed layout there is nothing to hold against the rest; its own error is already noted.
  if (!job.layout || job.layout->Validate().ok()) in.Check(job.Validate());
  LS_RETURN_IF_ERROR(in.Finish());
  return job;
}

absl::StatusOr<Job> ReadJob(const std::string& path, const Presets& presets) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseJob(text, path, presets);
}

}  // namespace lockstep::cluster
