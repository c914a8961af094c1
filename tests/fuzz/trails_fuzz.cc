// Any bytes as the trails of two ranks: it can be diagnosed, whatever they say.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "lockstep/base/check.h"
#include "lockstep/detect/diagnosis.h"
#include "lockstep/trace/trails.h"

namespace {

template <typename Plain>
std::vector<Plain> Take(std::span<const uint8_t>& bytes, size_t most) {
  std::vector<Plain> all(std::min(most, bytes.size() / sizeof(Plain)));
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), all.size() * sizeof(Plain));
  bytes = bytes.subspan(all.size() * sizeof(Plain));
  return all;
}

lockstep::trace::TrailSnapshot TrailOf(std::span<const uint8_t> bytes) {
  lockstep::trace::TrailSnapshot trail;
  for (const ls_origin& origin : Take<ls_origin>(bytes, 1)) trail.origin = origin;
  for (const int64_t ns : Take<int64_t>(bytes, 1)) trail.taken_ns = ns;
  for (const int64_t ns : Take<int64_t>(bytes, 1)) trail.wall_minus_boot_ns = ns;
  trail.alive = trail.taken_ns % 2 == 0;
  trail.communicators = Take<ls_communicator>(bytes, 2);
  trail.under_way = Take<ls_record>(bytes, 1);
  trail.ended = Take<ls_record>(bytes, 100);
  return trail;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::span<const uint8_t> bytes(data, size);
  std::vector<trace::TrailSnapshot> trails = {TrailOf(bytes.first(size / 2)), TrailOf(bytes.subspan(size / 2))};
  trace::Thin(trails[1], 0, 2);
  const trace::CommLog log = trace::JoinTrails(std::move(trails));
  const Json report = detect::DiagnosisReport(detect::DiagnoseCommunication(log), log);
  LS_CHECK(!RenderJson(report).empty() && !RenderText(report).empty(), "{} bytes", size);
  return 0;
}
