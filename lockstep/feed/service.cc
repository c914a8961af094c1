#include "lockstep/feed/service.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mix.h"
#include "lockstep/feed/heap.h"
#include "lockstep/feed/status.h"

namespace lockstep::feed {
namespace {

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0;
  for (const char c : text) hash = Mix(hash ^ (static_cast<unsigned char>(c) + kGoldenGamma));
  return hash;
}

absl::StatusOr<std::vector<uint64_t>> ReadIds(std::vector<Fd> fds, uint64_t count) {
  struct stat info{};
  const bool here = fds.size() == 1 && fstat(fds[0].get(), &info) == 0;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (!here || bytes % sizeof(uint64_t) != 0 || bytes / sizeof(uint64_t) != count)
    return InvalidArgument("where: {} ids were to come beside the request, and did not", count);
  std::vector<uint64_t> ids(count);
  const std::span<std::byte> all = std::as_writable_bytes(std::span(ids));
  if (ReadAt(fds[0].get(), all, 0) < all.size()) return Errno(errno == 0 ? EIO : errno, "where: reading {} ids", count);
  return ids;
}

std::vector<std::unique_ptr<Maker>> Makers(const DataSet& data, size_t threads) {
  std::vector<std::unique_ptr<Maker>> makers;
  for (size_t i = 0; i < threads; ++i) makers.push_back(data.NewMaker());
  return makers;
}

// Of the budget: what threads have of their own, and what the heap has not given back yet.
uint64_t BesideItems(size_t threads) { return threads * Maker::kOwn + kUnusedHeap; }

absl::Status CheckBudget(const ServiceOptions& options) {
  constexpr uint64_t kLeastForItems = 4 << 20;
  const uint64_t least = BesideItems(options.threads) + kLeastForItems;
  if (options.cache_bytes >= least) return absl::OkStatus();
  return InvalidArgument(
      "--cache of {} MB: {} threads work in {} MB, and items need some too; expected {}M or more, or "
      "fewer --threads",
      options.cache_bytes >> 20, options.threads, BesideItems(options.threads) >> 20, least >> 20);
}

// Of some items, so that it depends on the data set alone. Of items that can't be read there is none.
uint64_t MeanKeptBytes(const DataSet& data) {
  constexpr uint64_t kLooked = 16;
  const std::unique_ptr<Maker> maker = data.NewMaker();
  const uint64_t looked = std::min(kLooked, data.items());
  uint64_t sum = 0, count = 0;
  for (uint64_t i = 0; i < looked; ++i) {
    prepare::Buffer file;
    if (!maker->Read(i * data.items() / looked, file).ok()) continue;
    const absl::StatusOr<prepare::DecodeMemory> memory = maker->MemoryFor(file.bytes());
    if (!memory.ok()) continue;
    sum += memory->kept;
    ++count;
  }
  return count == 0 ? 0 : std::max<uint64_t>(1, sum / count);
}

uint64_t ItemsIn(uint64_t cache_bytes, const DataSet& data) {
  const uint64_t mean = MeanKeptBytes(data);
  return mean == 0 ? 0 : cache_bytes / mean;
}

std::string Error(const absl::Status& status) { return OneLine({{"error", Message(status)}}); }

}  // namespace

absl::StatusOr<std::optional<sampling::Policy>> ParseServedPolicy(const std::string& name) {
  if (name == "auto") return std::nullopt;
  LS_ASSIGN_OR_RETURN(const sampling::Policy policy, sampling::ParsePolicy(name));
  if (policy == sampling::Policy::kCommon || policy == sampling::Policy::kPaced ||
      policy == sampling::Policy::kIndependent)
    return policy;
  return InvalidArgument(
      "policy \"{}\": a job that goes on in such an order needs a bit an item, and a state has a few numbers; expected "
      "auto, common, paced or independent",
      name);
}

absl::StatusOr<std::unique_ptr<Service>> Service::Open(const ServiceOptions& options, Poller& poller,
                                                       const Clock& clock) {
  LS_RETURN_IF_ERROR(CheckBudget(options));
  LS_ASSIGN_OR_RETURN(DataSet data, DataSet::Open(options.name, options.data, options.limits));
  LS_ASSIGN_OR_RETURN(std::unique_ptr<Door> door, Door::Open(options.socket, poller));
  return std::unique_ptr<Service>(new Service(options, std::move(data), std::move(door), clock));
}

Service::Service(const ServiceOptions& options, DataSet data, std::unique_ptr<Door> door, const Clock& clock)
    : options_(options),
      data_(std::move(data)),
      clock_(clock),
      started_(clock.Now()),
      cache_items_(ItemsIn(options.cache_bytes - BesideItems(options.threads), data_)),
      before_items_(AnonymousBytes()),
      begun_(options.socket + ".begun"),
      dispatcher_(
          {.cache_bytes = options.cache_bytes - BesideItems(options.threads),
           .memory_limit = before_items_ + options.cache_bytes - kUnusedHeap,
           .name = [this](uint64_t item) { return fmt::format("item {} ({})", item, data_.source().KeyOf(item)); }},
          Makers(data_, options.threads), [this](uint64_t item) { return data_.label(item); }, clock),
      chooser_(dispatcher_, options.choose),
      door_(std::move(door)) {
  door_->Listen({.said = [this](int guest, Packet packet) { Answer(guest, std::move(packet)); },
                 .left = [this](int guest) { Remove(guest); }});
}

Service::~Service() {
  const bool nobody = ranks_.empty();
  door_.reset();  // before reads begin to fail: nobody is to be handed batches without their items
  data_.Stop();   // threads that wait for a server are to end
  if (nobody) begun_.Remove();
}

// ---- ranks ----

void Service::Remove(int guest) {
  const auto found = ranks_.find(guest);
  if (found == ranks_.end()) return;
  dispatcher_.Remove(found->second);
  Log(LogLevel::kInfo, "job {} rank {} ({}) has gone; what was held for it is free again", found->second->job->name,
      found->second->number, found->second->whose.ToString());
  ranks_.erase(found);
}

void Service::Answer(int guest, Packet packet) {
  const auto rank = ranks_.find(guest);
  if (packet.text == "r") {
    if (rank != ranks_.end()) dispatcher_.Refill(rank->second);
    return;
  }
  absl::StatusOr<Json> read = ReadJson(packet.text);
  const Json request = read.ok() ? *std::move(read) : Json();
  const std::string op = TextAt(request, "op");
  absl::Status answered;
  if (op == "status") {
    answered = SendText(guest, OneLine(Status()));
  } else if (op == "join" && rank == ranks_.end()) {
    const absl::Status joined = Join(guest, request, std::move(packet.fds));
    if (!joined.ok()) answered = SendPacket(guest, Error(joined));
  } else {
    const std::string found =
        read.ok() ? fmt::format("\"{}\"", op) : fmt::format("what is no JSON in UTF-8 ({})", Message(read.status()));
    answered = SendPacket(guest, Error(InvalidArgument("expected join or status, found {}", found)));
  }
  if (!answered.ok()) door_->SendAway(guest);
}

void Service::Tick() {
  uint64_t items = 0;
  dispatcher_.Look([&](const Dispatcher& dispatcher) { items = dispatcher.cache().used(); });
  HeapLimit(before_items_ + items + BesideItems(options_.threads)).Hold();
  std::set<std::shared_ptr<const sampling::ItemSet>> sets;
  for (const auto& [guest, rank] : ranks_) sets.insert(rank->job->set);
  if (!sets.empty()) DivideCache(std::move(sets));
}

// Anew, where jobs came or went, or work takes another time than it did.
void Service::DivideCache(std::set<std::shared_ptr<const sampling::ItemSet>> sets) {
  if (sets != divided_for_) {
    std::vector<sampling::ItemSet> all;
    for (const auto& set : sets) all.push_back(*set);
    wanted_items_ = sampling::ItemSet::Union(all).size();
    divided_for_ = std::move(sets);
  }
  Costs costs;
  uint64_t budget = 0;
  dispatcher_.Look([&](const Dispatcher& seen) {
    costs = seen.tally().costs;
    budget = seen.cache().budget();
  });
  const auto quotas = splitter_.Solve(
      costs, {.threads = options_.threads, .items = wanted_items_, .budget = budget, .jobs = divided_for_.size()});
  if (quotas) dispatcher_.SetQuotas(*quotas);
}

// ---- joining ----

absl::Status Service::Join(int guest, const Json& packet, std::vector<Fd> fds) {
  LS_ASSIGN_OR_RETURN(JoinRequest request, ParseJoin(packet));
  if (request.dataset != data_.name())
    return NotFound("there is no data set \"{}\" at {}; this service has \"{}\"", request.dataset, options_.socket,
                    data_.name());
  if (request.listed) {
    LS_ASSIGN_OR_RETURN(request.where.listed, ReadIds(std::move(fds), *request.listed));
  }
  if (request.apart && !options_.for_machines) request.alone = true;
  LS_RETURN_IF_ERROR(CheckFree(request));
  const RingShape shape{request.slots, request.batch, data_.ItemBytes(request.recipe)};
  LS_RETURN_IF_ERROR(CheckRoom(shape));
  LS_ASSIGN_OR_RETURN(Joining joining, Prepare(request));
  const std::shared_ptr<Job> job = joining.job;
  const absl::Status entered = Enter(guest, request, shape, std::move(joining));
  if (!entered.ok() && Running(request.job) == nullptr)
    dispatcher_.Look([&](const Dispatcher&) { job->epochs.Leave(); });
  return entered;
}

absl::Status Service::Enter(int guest, const JoinRequest& request, const RingShape& shape, Joining joining) {
  LS_ASSIGN_OR_RETURN(Ring ring, Ring::Create(shape));
  const Json answer{{"state", joining.stream.Save()},
                    {"epoch", joining.stream.place().epoch},
                    {"items", joining.job->items()},
                    {"shape", data_.ItemShape(request.recipe)},
                    {"dtype", data_.ItemType(request.recipe)}};
  const Fd memory = ring.TakeFd();
  const int fd = memory.get();
  LS_RETURN_IF_ERROR(SendPacket(guest, OneLine(answer), std::span(&fd, 1)));
  const Whose whose{request.from.host, request.from.pid != 0 ? request.from.pid : door_->ProcessOf(guest)};
  Log(LogLevel::kInfo, "job {} rank {} of {} ({}): {} items, from {} of epoch {} on", request.job, request.rank,
      request.world, whose.ToString(), joining.job->items(), joining.stream.place().taken,
      joining.stream.place().epoch);
  const auto rank = std::make_shared<Rank>(Rank{
      joining.job, request.rank, whose, std::move(ring), std::move(joining.stream), 0, 0, {}, clock_.Now(), false});
  ranks_.emplace(guest, rank);
  dispatcher_.Add(rank);
  return absl::OkStatus();
}

// Ranks that died a moment ago may be here again before their end has been noticed.
absl::Status Service::CheckFree(const JoinRequest& request) {
  std::vector<int> gone;
  for (const auto& [guest, rank] : ranks_) {
    if (rank->job->name != request.job) continue;
    if (door_->IsGone(guest)) {
      gone.push_back(guest);
    } else if (rank->number == request.rank) {
      return FailedPrecondition("job \"{}\" has a rank {} already, {}; give one of the two another name", request.job,
                                request.rank, rank->whose.ToString());
    }
  }
  for (const int guest : gone) door_->SendAway(guest);
  return absl::OkStatus();
}

std::shared_ptr<Job> Service::Running(const std::string& name) const {
  for (const auto& [guest, rank] : ranks_)
    if (rank->job->name == name) return rank->job;
  return nullptr;
}

absl::StatusOr<Service::Joining> Service::Prepare(const JoinRequest& request) {
  LS_RETURN_IF_ERROR(data_.CheckRecipe(request.recipe));
  LS_ASSIGN_OR_RETURN(sampling::ItemSet set, data_.SetOf(request.where));
  const EpochCut cut{set.size(), request.batch, request.world, request.drop_last};
  const std::string terms = fmt::format("{}, items {:016x}", TermsOf(request), HashOf(set.ToString()));
  if (set.size() < request.world)
    return InvalidArgument("world {}: the set has {} items, so some ranks would have none", request.world, set.size());
  if (request.drop_last && set.size() < cut.full())
    return InvalidArgument("drop_last: the set has {} items, fewer than the {} of one step", set.size(), cut.full());
  LS_ASSIGN_OR_RETURN(
      sampling::Stream stream,
      sampling::Stream::Create(
          {.dataset = sampling::ItemSet::Below(data_.items()), .items = std::move(set), .seed = request.seed}));
  if (!request.state.empty()) LS_RETURN_IF_ERROR(stream.Load(request.state));
  const std::shared_ptr<Job> running = Running(request.job);
  if (running != nullptr && running->terms != terms)
    return FailedPrecondition("job \"{}\": rank {} asks for {}, and other ranks have {}; expected the same",
                              request.job, request.rank, terms, running->terms);
  Joining joining{running, std::move(stream)};
  if (running == nullptr) {
    const uint64_t key = HashOf(request.job);
    joining.job = std::make_shared<Job>(Job{.name = request.job,
                                            .terms = terms,
                                            .cut = cut,
                                            .recipe = request.recipe,
                                            .set = std::make_shared<const sampling::ItemSet>(joining.stream.items()),
                                            .seed = request.seed,
                                            .key = key,
                                            .epochs = Epochs(key, request.world, GroupOf(request), &begun_)});
  }
  LS_RETURN_IF_ERROR(Place(request, running == nullptr, joining));
  return joining;
}

// Where the rank begins, or goes on. The first rank of a job takes it into its group.
absl::Status Service::Place(const JoinRequest& request, bool is_first_rank, Joining& joining) {
  Job& job = *joining.job;
  sampling::Group* group = job.epochs.group().get();
  absl::Status placed;
  dispatcher_.Look([&](const Dispatcher& dispatcher) {
    if (is_first_rank && group != nullptr) group->Join(job.key, job.set);
    if (request.state.empty()) {
      const bool independent = options_.policy == sampling::Policy::kIndependent;
      const sampling::Lap alone{.number = independent && !request.alone ? job.key : 0};
      joining.stream.GoTo(job.epochs.First(joining.stream, alone, clock_.Now()));
    } else if (!job.epochs.GoOn(joining.stream, request.rank, dispatcher.IsUntouched(job), clock_.Now())) {
      placed = FailedPrecondition("job \"{}\": rank {} goes on from a state of another run than its other ranks",
                                  request.job, request.rank);
    }
  });
  return placed;
}

// Of the jobs with the same seed that are not alone; null: the job is.
std::shared_ptr<sampling::Group> Service::GroupOf(const JoinRequest& request) const {
  if (request.alone || options_.policy == sampling::Policy::kIndependent) return nullptr;
  for (const auto& [guest, rank] : ranks_)
    if (rank->job->seed == request.seed && rank->job->epochs.group() != nullptr) return rank->job->epochs.group();
  return std::make_shared<sampling::Group>(sampling::GroupOptions{
      .items = data_.items(), .seed = request.seed, .cache_items = cache_items_, .policy = options_.policy});
}

absl::Status Service::CheckRoom(const RingShape& shape) const {
  uint64_t used = 0;
  for (const auto& [guest, rank] : ranks_) used += RingBytes(rank->ring.shape());
  return CheckRingMemory(shape, used, options_.ring_bytes);
}

// ---- status ----

Json Service::Status() const {
  return StatusReport(data_, options_.socket, clock_.Now() - started_, dispatcher_, splitter_.split());
}

}  // namespace lockstep::feed
