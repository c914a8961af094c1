#include "lockstep/prepare/measure.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/prepare/measured_set.h"

namespace lockstep::prepare {
namespace {

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
double CpuSeconds() { return Seconds(CLOCK_THREAD_CPUTIME_ID); }

// One value per pass.
struct Samples {
  std::vector<double> values;

  double At(double share) const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
  double median() const { return At(0.5); }
};

Json SpreadOf(const Samples& samples) {
  return Json{{"median", samples.median()}, {"min", samples.At(0)}, {"max", samples.At(1)}};
}

struct Rates {
  Samples cpu, wall;  // images per second
};

using ReadItem = absl::Status (MeasuredSet::*)(uint64_t, Buffer&) const;

// Reads and prepares everything once.
absl::Status Pass(const MeasuredSet& set, ReadItem read, const MeasureOptions& options, Rates& rates) {
  Preparer preparer(options.limits);
  Buffer bytes;
  std::vector<uint8_t> out(options.recipe.bytes());
  const double cpu = CpuSeconds(), wall = Seconds(CLOCK_MONOTONIC);
  for (uint64_t i = 0; i < set.size(); ++i) {
    LS_RETURN_IF_ERROR((set.*read)(i, bytes));
    LS_RETURN_IF_ERROR(preparer.Prepare(bytes.bytes(), options.recipe, set.key(i), out));
  }
  const auto count = static_cast<double>(set.size());
  rates.cpu.values.push_back(count / (CpuSeconds() - cpu));
  rates.wall.values.push_back(count / (Seconds(CLOCK_MONOTONIC) - wall));
  return absl::OkStatus();
}

// CPU time of an image, in microseconds.
struct Parts {
  Samples read, decode, resize, decode_with_tiles;
};

// Adds up what lies between the looks at the clock.
class Split {
 public:
  void Start() { last_ = CpuSeconds(); }
  void To(double& sum) {
    const double now = CpuSeconds();
    sum += now - std::exchange(last_, now);
  }

 private:
  double last_ = 0;
};

struct Sums {
  double read = 0, plan = 0, decode = 0, resize = 0;
};

absl::Status PassOfParts(const MeasuredSet& set, ReadItem read, const MeasureOptions& options, Sums& sums) {
  ImageDecoder decoder;
  Resizer resizer;
  Buffer bytes;
  Image image;
  std::vector<uint8_t> out(options.recipe.bytes());
  Split split;
  for (uint64_t i = 0; i < set.size(); ++i) {
    split.Start();
    LS_RETURN_IF_ERROR((set.*read)(i, bytes));
    split.To(sums.read);
    LS_ASSIGN_OR_RETURN(const ImageHead head, ReadImageHead(bytes.bytes(), options.limits));
    const Placement placement = Place(options.recipe, head.size, set.key(i));
    resizer.Plan(placement.scaling());
    split.To(sums.plan);
    LS_RETURN_IF_ERROR(decoder.Decode(bytes.bytes(), head, placement.Below(resizer.needed()), image));
    split.To(sums.decode);
    resizer.Run(image.view, out.data());
    split.To(sums.resize);
  }
  return absl::OkStatus();
}

absl::Status MeasureParts(const MeasuredSet& set, const MeasureOptions& options, Parts& parts) {
  const auto micros = [&](double sum) { return 1e6 * sum / static_cast<double>(set.size()); };
  Sums plain, tiled;
  LS_RETURN_IF_ERROR(PassOfParts(set, &MeasuredSet::Read, options, plain));
  LS_RETURN_IF_ERROR(PassOfParts(set, &MeasuredSet::ReadTiled, options, tiled));
  parts.read.values.push_back(micros(plain.read));
  parts.decode.values.push_back(micros(plain.decode));
  parts.resize.values.push_back(micros(plain.plan + plain.resize));
  parts.decode_with_tiles.values.push_back(micros(tiled.decode));
  return absl::OkStatus();
}

Json RatesJson(const Rates& rates) {
  return Json{
      {"images_per_s_per_core", rates.cpu.median()}, {"cpu", SpreadOf(rates.cpu)}, {"wall", SpreadOf(rates.wall)}};
}

}  // namespace

absl::StatusOr<Json> MeasureFolder(const MeasureOptions& options) {
  LS_RETURN_IF_ERROR(Validate(options.recipe));
  LS_ASSIGN_OR_RETURN(const MeasuredSet set, MeasuredSet::Open(options));
  Rates plain, tiled;
  Parts parts;
  for (int pass = 0; pass < options.passes; ++pass) {
    LS_RETURN_IF_ERROR(Pass(set, &MeasuredSet::Read, options, plain));
    LS_RETURN_IF_ERROR(Pass(set, &MeasuredSet::ReadTiled, options, tiled));
    LS_RETURN_IF_ERROR(MeasureParts(set, options, parts));
  }
  Json report = set.Description();
  report["passes"] = options.passes;
  report.update(RatesJson(plain));
  report["with_tile_index"] = RatesJson(tiled);
  report["with_tile_index"]["index"] = ToJson(set.index_counts());
  report["parts_us"] = Json{{"read", SpreadOf(parts.read)},
                            {"decode", SpreadOf(parts.decode)},
                            {"decode_with_tile_index", SpreadOf(parts.decode_with_tiles)},
                            {"resize", SpreadOf(parts.resize)}};
  report["resize_kernels"] = Resizer().kernels();
  return report;
}

}  // namespace lockstep::prepare
