#include "lockstep/synth/kineto_file.h"

#include <cstdlib>

#include "lockstep/trace/perfetto.h"

namespace lockstep::synth {
namespace {

constexpr int64_t kEpochNs = 1'750'000'000'000'000'000;  // when the jobs begin
constexpr int64_t kHostProcess = 4000, kMainThread = 4000;
constexpr int kDevicesPerHost = 8;

}  // namespace

std::string ListText(const std::vector<int>& ranks) { return fmt::format("[{}]", fmt::join(ranks, ", ")); }

absl::StatusOr<KinetoFile> KinetoFile::Create(const std::string& directory, int rank, int world_size, KinetoEra era,
                                              double clock_us, const std::vector<KinetoGroup>& groups) {
  LS_ASSIGN_OR_RETURN(trace::TextWriter text,
                      trace::TextWriter::Create(fmt::format("{}/rank-{}.json.gz", directory, rank)));
  KinetoFile file(rank, era, clock_us, std::move(text));
  file.WriteHead(world_size, groups);
  return file;
}

void KinetoFile::WriteHead(int world_size, const std::vector<KinetoGroup>& groups) {
  text_.Write(
      "{{\n\"schemaVersion\": 1,\n\"deviceProperties\": [],\n\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": "
      "{}, \"world_size\": {}",
      rank_, world_size);
  if (era_ != KinetoEra::kMicros) {
    text_.Write(", \"pg_count\": {}, \"pg_config\": [", groups.size());
    for (size_t i = 0; i < groups.size(); ++i)
      text_.Write(
          "{}{{\"pg_name\": \"{}\", \"pg_desc\": \"{}\", \"backend_config\": \"cuda:nccl\", \"pg_size\": {}, "
          "\"ranks\": {}}}",
          i == 0 ? "" : ", ", groups[i].name, groups[i].description, groups[i].ranks.size(), ListText(groups[i].ranks));
    text_.Write("], \"nccl_version\": \"2.21.5\"");
  }
  text_.Write("}},\n\"displayTimeUnit\": \"ms\",\n");
  if (era_ == KinetoEra::kBase) text_.Write("\"baseTimeNanoseconds\": {},\n", Base());
  text_.Write("\"traceEvents\": [");
}

// Ranks of one job may have different ones.
int64_t KinetoFile::Base() const { return kEpochNs - 1'000'000'000LL * (rank_ + 1); }

// A moment as this era has it.
std::string KinetoFile::Time(double us) const {
  const auto ns = static_cast<int64_t>((us + clock_us_) * 1e3) + kEpochNs;
  if (era_ == KinetoEra::kMicros) return std::to_string(ns / 1000);
  const int64_t written = era_ == KinetoEra::kBase ? ns - Base() : ns;
  const int64_t size = std::abs(written);
  return fmt::format("{}{}.{:03}", written < 0 ? "-" : "", size / 1000, size % 1000);
}

std::string KinetoFile::Duration(double us) const {
  return era_ == KinetoEra::kMicros ? std::to_string(static_cast<int64_t>(us)) : fmt::format("{:.3f}", us);
}

void KinetoFile::Event(const char* category, const std::string& name, int64_t process, int64_t thread, double begin_us,
                       double duration_us, const std::string& args) {
  text_.Write(
      "{}\n  {{\n    \"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {},\n    \"ts\": {}, "
      "\"dur\": {}{}\n  }}",
      first_ ? "" : ",", category, trace::JsonText(name), process, thread, Time(begin_us), Duration(duration_us),
      args.empty() ? "" : ",\n    \"args\": {" + args + "}");
  first_ = false;
}

void KinetoFile::AddStep(size_t number, double begin_us, double end_us) {
  Event("user_annotation", fmt::format("ProfilerStep#{}", number), kHostProcess, kMainThread, begin_us,
        end_us - begin_us, "");
}

void KinetoFile::AddKernel(const KinetoKernel& kernel) {
  ++correlation_;
  Event("cuda_runtime", "cudaLaunchKernel", kHostProcess, kMainThread, kernel.launch_us, 2,
        fmt::format("\"cbid\": 211, \"correlation\": {}", correlation_));
  const int device = rank_ % kDevicesPerHost;
  Event("kernel", kernel.name, device, kernel.stream, kernel.begin_us, kernel.duration_us,
        fmt::format("\"External id\": {0}, \"device\": {1}, \"stream\": {2}, \"correlation\": {0}{3}", correlation_,
                    device, kernel.stream, era_ == KinetoEra::kMicros ? "" : kernel.told));
}

absl::Status KinetoFile::Finish() {
  text_.Write("\n],\n\"traceName\": \"rank-{}.json\"\n}}\n", rank_);
  return text_.Finish();
}

}  // namespace lockstep::synth
