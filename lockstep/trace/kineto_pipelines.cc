#include "lockstep/trace/kineto_pipelines.h"

#include <algorithm>

namespace lockstep::trace {

std::optional<Pipelines> Pipelines::Find(const std::vector<int>& numbers, const std::vector<Transfers>& transfers) {
  Pipelines found;
  for (size_t rank = 0; rank < numbers.size(); ++rank) found.index_of_[numbers[rank]] = rank;
  found.stage_of_.assign(numbers.size(), -1);
  found.pipeline_of_.assign(numbers.size(), -1);
  const auto next_of = [&](size_t rank) -> std::optional<size_t> {
    for (const Collective* one : transfers[rank]) {
      const auto peer = found.index_of_.find(one->peer);
      if (one->sends && peer != found.index_of_.end() && found.stage_of_[peer->second] < 0) return peer->second;
    }
    return std::nullopt;
  };
  for (size_t first = 0; first < numbers.size(); ++first) {
    if (transfers[first].empty() || !transfers[first].front()->sends) continue;
    std::vector<size_t>& pipeline = found.ranks_.emplace_back();
    for (std::optional<size_t> rank = first; rank; rank = next_of(*rank)) {
      if (found.stage_of_[*rank] >= 0) return std::nullopt;
      found.stage_of_[*rank] = static_cast<int>(pipeline.size());
      found.pipeline_of_[*rank] = static_cast<int>(found.ranks_.size()) - 1;
      pipeline.push_back(*rank);
    }
  }
  const auto as_long = [&](const auto& pipeline) { return pipeline.size() == found.ranks_.front().size(); };
  const bool all = std::find(found.stage_of_.begin(), found.stage_of_.end(), -1) == found.stage_of_.end();
  if (found.ranks_.empty() || !all || found.stages() < 2) return std::nullopt;
  if (!std::all_of(found.ranks_.begin(), found.ranks_.end(), as_long)) return std::nullopt;
  return found;
}

std::optional<OpType> Pipelines::TypeOf(size_t rank, const Collective& transfer) const {
  const auto peer = index_of_.find(transfer.peer);
  if (peer == index_of_.end() || PipelineOf(peer->second) != PipelineOf(rank)) return std::nullopt;
  int steps = StageOf(peer->second) - StageOf(rank);
  if (steps == stages() - 1 && steps > 1) steps = -1;
  if (steps == 1 - stages() && steps < -1) steps = 1;
  if (steps != 1 && steps != -1) return std::nullopt;
  if (transfer.name == kExchange) return steps == 1 ? OpType::kForwardSend : OpType::kForwardRecv;
  if (transfer.sends) return steps == 1 ? OpType::kForwardSend : OpType::kBackwardSend;
  return steps == -1 ? OpType::kForwardRecv : OpType::kBackwardRecv;
}

std::vector<int> MicrobatchesOf(size_t segments, const std::vector<TransferOfRole>& transfers) {
  constexpr int kNone = -1;
  std::map<OpType, int> count;
  std::vector<int> begins(segments, kNone), ends(segments, kNone);
  for (const TransferOfRole& one : transfers) {
    const int number = count[one.type]++;
    const bool sends = IsSend(one.type);
    if (sends && one.input < segments) ends[one.input] = number;
    if (!sends && one.awaited < segments) begins[one.awaited] = number;
  }
  std::vector<int> microbatches(segments, kNone);
  int now = kNone;
  for (size_t i = 0; i < segments; ++i) {
    if (begins[i] != kNone) now = begins[i];
    const bool of_several = ends[i] != kNone && now != kNone && ends[i] != now;
    microbatches[i] = of_several ? kNone : std::max(now, ends[i]);
    if (ends[i] != kNone) now = kNone;
  }
  return microbatches;
}

}  // namespace lockstep::trace
