#include "lockstep/detect/stack_clusters.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace lockstep::detect {
namespace {

using trace::ProcessRole;
using trace::ProcessStack;

constexpr size_t kExampleFrames = 16;
constexpr int kNone = -1;

struct Frame {
  std::string text;
  std::optional<Partners> call;  // of Python, in communication
  bool native_call, background, torch;
};

// Each frame once: by its key, or as it was read where lines count, and what it comes to.
class FrameTable {
 public:
  explicit FrameTable(Lines lines) : lines_(lines) {}

  int IdOf(std::string_view raw) {
    std::string_view key = raw;
    if (lines_ == Lines::kDrop) {
      MakeFrameKey(raw, key_);
      key = key_;
    }
    if (const auto known = by_key_.find(key); known != by_key_.end()) return known->second;
    return by_key_.emplace(key, Normal(raw)).first->second;
  }
  const Frame& at(int id) const { return frames_[static_cast<size_t>(id)]; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  int Normal(std::string_view raw) {
    std::string text = NormalFrame(raw, lines_);
    const auto [known, fresh] = by_text_.try_emplace(text, static_cast<int>(frames_.size()));
    if (fresh) {
      // Lines, where they are kept, stand in the way of the names of files.
      const std::string plain = lines_ == Lines::kKeep ? NormalFrame(raw) : text;
      frames_.push_back(
          {text, CommunicationCall(plain), IsNativeCommunication(plain), IsBackground(plain), IsOfTorch(plain)});
    }
    return known->second;
  }

  Lines lines_;
  std::string key_;  // of the newest
  std::unordered_map<std::string, int, Hash, std::equal_to<>> by_key_;
  std::unordered_map<std::string, int> by_text_;
  std::deque<Frame> frames_;
};

// What two processes at the same place have in common.
struct Key {
  ProcessRole role;
  InCollective in_communication;
  int native_call = kNone;  // where no Python frame says that it communicates
  std::vector<int> frames;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325ULL;
    const auto add = [&](int value) { hash = (hash ^ static_cast<uint32_t>(value)) * 0x100000001b3ULL; };
    add(static_cast<int>(key.role));
    add(key.native_call);
    for (const int frame : key.frames) add(frame);
    return static_cast<size_t>(hash ^ (hash >> 32));
  }
};

using Calls = std::set<int>;  // frames

class Clusterer {
 public:
  explicit Clusterer(Lines lines) : table_(lines) {}

  StackClusters Run(std::span<const ProcessStack> stacks) {
    StackClusters result;
    result.processes = stacks.size();
    for (const ProcessStack& stack : stacks) Take(stack, result);
    for (size_t i = 0; i < keys_.size(); ++i) Describe(keys_[i], result.clusters[i]);
    JoinWithoutPython(result);
    Sort(result);
    return result;
  }

 private:
  void Take(const ProcessStack& stack, StackClusters& result) {
    int cluster = Trainer::kUnread;
    if (stack.python.empty() && stack.native.empty()) {
      ++result.unread;
    } else {
      Key key = KeyOf(stack);
      const auto [known, fresh] = index_.try_emplace(key, static_cast<int>(keys_.size()));
      if (fresh) {
        keys_.push_back(std::move(key));
        result.clusters.emplace_back();
        firsts_.push_back(&stack);
        members_.emplace_back();
      }
      cluster = known->second;
      members_[static_cast<size_t>(cluster)].push_back(&stack);
      Join(stack, result.clusters[static_cast<size_t>(cluster)], firsts_[static_cast<size_t>(cluster)]);
    }
    if (stack.role == ProcessRole::kTrainer)
      result.trainers.push_back({stack.rank, stack.node, cluster, stack.stopped, stack.unreadable});
  }

  static void Join(const ProcessStack& stack, StackCluster& cluster, const ProcessStack*& first) {
    ++cluster.processes;
    cluster.ranks.push_back(stack.rank);
    const auto order = [](const ProcessStack& one) { return std::tie(one.rank, one.node, one.pid, one.python); };
    if (order(stack) < order(*first)) first = &stack;
  }

  Key KeyOf(const ProcessStack& stack) {
    Key key{stack.role, InCollective::kUnknown, kNone, Ids(stack.python)};
    const size_t call = OutermostCall(key.frames);
    if (call < key.frames.size()) {
      Cut(key.frames, call);
      key.in_communication = InCollective::kYes;  // whatever is below it
      return key;
    }
    const int native_call = NativeCall(stack);
    if (key.frames.empty()) {
      key.frames = Ids(stack.native);
      Cut(key.frames, OutermostCall(key.frames));
    } else {
      key.native_call = native_call;
    }
    if (native_call != kNone) {
      key.in_communication = InCollective::kYes;
    } else if (!stack.native.empty() || !AnyOfTorch(key.frames)) {
      // Python alone can't tell a backward pass that computes from one that waits.
      key.in_communication = InCollective::kNo;
    }
    return key;
  }

  // Neighbours that are alike, as of modules within modules, are one.
  std::vector<int> Ids(const std::vector<std::string>& frames) {
    std::vector<int> ids;
    ids.reserve(frames.size());
    for (const std::string& frame : frames) {
      const int id = table_.IdOf(frame);
      if (ids.empty() || ids.back() != id) ids.push_back(id);
    }
    return ids;
  }

  // frames.size(): there is none.
  size_t OutermostCall(const std::vector<int>& frames) const {
    for (size_t i = frames.size(); i-- > 0;)
      if (table_.at(frames[i]).call || table_.at(frames[i]).native_call) return i;
    return frames.size();
  }

  static void Cut(std::vector<int>& frames, size_t begin) {
    if (begin < frames.size()) frames.erase(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  bool AnyOfTorch(const std::vector<int>& frames) const {
    return std::any_of(frames.begin(), frames.end(), [&](int frame) { return table_.at(frame).torch; });
  }

  // The outermost frame of communication in the first thread that has one and serves the rank itself.
  int NativeCall(const ProcessStack& stack) {
    if (const int call = NativeCallIn(stack.native, true); call != kNone) return call;
    for (const std::vector<std::string>& thread : stack.others)
      if (const int call = NativeCallIn(thread, false); call != kNone) return call;
    return kNone;
  }

  int NativeCallIn(const std::vector<std::string>& thread, bool main) {
    int call = kNone;
    for (const std::string& raw : thread) {
      const int id = table_.IdOf(raw);
      if (!main && table_.at(id).background) return kNone;
      if (table_.at(id).native_call) call = id;
    }
    return call;
  }

  void Describe(const Key& key, StackCluster& cluster) const {
    cluster.role = key.role;
    cluster.in_communication = key.in_communication;
    std::vector<int> frames = key.frames;
    if (key.native_call != kNone) frames.insert(frames.begin(), key.native_call);
    for (const int id : frames) {
      const Frame& frame = table_.at(id);
      if (cluster.frames.empty()) cluster.place = frame.text;
      if (!cluster.dimension) cluster.dimension = DimensionHint(frame.text);
      cluster.frames.push_back(frame.text);
    }
    // A reducer's wait is of the group of its gradients.
    const Frame& first = table_.at(frames.front());
    if (first.call) cluster.partners = *first.call;
    if (!first.call && cluster.dimension) cluster.partners = Partners::kGroup;
  }

  // What can't be told apart is one place: the largest of those that it may be.
  void JoinWithoutPython(StackClusters& result) {
    std::vector<StackCluster>& clusters = result.clusters;
    std::vector<size_t> place(clusters.size());
    std::iota(place.begin(), place.end(), size_t{0});
    std::vector<std::optional<Calls>> calls(clusters.size());  // asked for those alone that are compared
    for (size_t i = 0; i < clusters.size(); ++i) {
      if (!firsts_[i]->python.empty() || clusters[i].in_communication != InCollective::kYes) continue;
      for (size_t other = 0; other < clusters.size(); ++other)
        if (MayBeAt(i, other, clusters, calls) && (place[i] == i || IsLarger(clusters[other], clusters[place[i]])))
          place[i] = other;
    }
    for (size_t i = 0; i < clusters.size(); ++i) {
      if (place[i] == i) continue;
      StackCluster& joined = clusters[place[i]];
      joined.processes += clusters[i].processes;
      joined.ranks.insert(joined.ranks.end(), clusters[i].ranks.begin(), clusters[i].ranks.end());
    }
    std::vector<int> left(clusters.size(), kNone);
    size_t count = 0;
    for (size_t i = 0; i < clusters.size(); ++i) {
      if (place[i] != i) continue;
      left[i] = static_cast<int>(count);
      if (count != i) clusters[count] = std::move(clusters[i]);
      firsts_[count++] = firsts_[i];
    }
    clusters.resize(count);
    for (Trainer& trainer : result.trainers)
      if (trainer.cluster != Trainer::kUnread) trainer.cluster = left[place[static_cast<size_t>(trainer.cluster)]];
  }

  bool MayBeAt(size_t without_python, size_t other, const std::vector<StackCluster>& clusters,
               std::vector<std::optional<Calls>>& calls) {
    if (firsts_[other]->python.empty() || clusters[other].role != clusters[without_python].role ||
        clusters[other].in_communication != InCollective::kYes)
      return false;
    for (const size_t i : {without_python, other})
      if (!calls[i]) calls[i] = CallsOf(i);
    return std::includes(calls[other]->begin(), calls[other]->end(), calls[without_python]->begin(),
                         calls[without_python]->end());
  }

  // Of its members, which may differ in these below one call of Python. Who could not be read natively says nothing.
  Calls CallsOf(size_t cluster) {
    Calls calls;
    for (const ProcessStack* member : members_[cluster])
      if (const int call = NativeCall(*member); call != kNone) calls.insert(call);
    return calls;
  }

  static bool IsLarger(const StackCluster& one, const StackCluster& other) {
    return std::tie(other.processes, one.frames) < std::tie(one.processes, other.frames);
  }

  void Sort(StackClusters& result) const {
    std::vector<StackCluster>& clusters = result.clusters;
    for (size_t i = 0; i < clusters.size(); ++i) {
      std::vector<int>& ranks = clusters[i].ranks;
      std::sort(ranks.begin(), ranks.end());
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      const ProcessStack& first = *firsts_[i];
      const std::vector<std::string>& frames = first.python.empty() ? first.native : first.python;
      clusters[i].example = first.rank;
      clusters[i].example_frames.assign(
          frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(std::min(frames.size(), kExampleFrames)));
    }
    std::vector<size_t> order(clusters.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::tie(clusters[a].role, clusters[b].processes, clusters[a].ranks, clusters[a].frames) <
             std::tie(clusters[b].role, clusters[a].processes, clusters[b].ranks, clusters[b].frames);
    });
    std::vector<StackCluster> sorted;
    std::vector<int> place(clusters.size());
    for (const size_t from : order) {
      place[from] = static_cast<int>(sorted.size());
      sorted.push_back(std::move(clusters[from]));
    }
    clusters = std::move(sorted);
    for (Trainer& trainer : result.trainers)
      if (trainer.cluster != Trainer::kUnread) trainer.cluster = place[static_cast<size_t>(trainer.cluster)];
    std::sort(result.trainers.begin(), result.trainers.end(), [](const Trainer& a, const Trainer& b) {
      return std::tie(a.rank, a.node, a.cluster) < std::tie(b.rank, b.node, b.cluster);
    });
  }

  FrameTable table_;
  std::unordered_map<Key, int, KeyHash> index_;
  std::vector<Key> keys_;
  std::vector<const ProcessStack*> firsts_;                // by cluster, whose stack is its example
  std::vector<std::vector<const ProcessStack*>> members_;  // by cluster, before any are joined
};

}  // namespace

StackClusters ClusterStacks(std::span<const ProcessStack> stacks, Lines lines) { return Clusterer(lines).Run(stacks); }

}  // namespace lockstep::detect
