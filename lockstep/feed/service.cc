#include "lockstep/feed/service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/json_at.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mix.h"
#include "lockstep/feed/heap.h"
#include "lockstep/feed/status.h"

namespace lockstep::feed {
namespace {

constexpr int kAnswerMs = 5000;

pid_t PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0;
  for (const char c : text) hash = Mix(hash ^ (static_cast<unsigned char>(c) + kGoldenGamma));
  return hash;
}

uint64_t HalfOfMemory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

// A socket that a service which was killed has left is replaced; one that answers is in use.
absl::StatusOr<Fd> Listen(const std::string& path) {
  if (const absl::StatusOr<Fd> other = ConnectTo(path); other.ok())
    return FailedPrecondition("{}: in use by process {}; stop that, or choose another --socket", path,
                              PeerOf(other->get()));
  struct stat info{};
  if (stat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode))
    return FailedPrecondition("{}: there is a file of that name which is no socket; choose another --socket", path);
  return ListenAt(path);
}

absl::StatusOr<std::vector<uint64_t>> ReadIds(std::vector<Fd> fds, uint64_t count) {
  struct stat info{};
  if (fds.size() != 1 || fstat(fds[0].get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != count * sizeof(uint64_t))
    return InvalidArgument("where: {} ids were to come beside the request, and did not", count);
  std::vector<uint64_t> ids(count);
  const ssize_t got = pread(fds[0].get(), ids.data(), count * sizeof(uint64_t), 0);
  if (got != info.st_size) return Errno(errno, "where: reading {} ids", count);
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

Json Error(const absl::Status& status) { return {{"error", Message(status)}}; }

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
  LS_ASSIGN_OR_RETURN(DataSet data, DataSet::Open(options.name, options.data));
  LS_ASSIGN_OR_RETURN(Fd listener, Listen(options.socket));
  return std::unique_ptr<Service>(new Service(options, std::move(data), std::move(listener), poller, clock));
}

Service::Service(const ServiceOptions& options, DataSet data, Fd listener, Poller& poller, const Clock& clock)
    : options_(options),
      data_(std::move(data)),
      poller_(poller),
      clock_(clock),
      started_(clock.Now()),
      cache_items_(ItemsIn(options.cache_bytes - BesideItems(options.threads), data_)),
      before_items_(AnonymousBytes()),
      dispatcher_(
          {.cache_bytes = options.cache_bytes - BesideItems(options.threads),
           .memory_limit = before_items_ + options.cache_bytes - kUnusedHeap},
          Makers(data_, options.threads), [this](uint64_t item) { return data_.label(item); }, clock),
      listener_(std::move(listener)) {
  poller_.Watch(listener_.get(), [this] { Accept(); });
}

Service::~Service() {
  data_.Stop();  // threads that wait for a server are to end
  while (!connections_.empty()) Drop(connections_.begin()->first);
  poller_.Forget(listener_.get());
  unlink(options_.socket.c_str());
}

// ---- connections ----

void Service::Accept() {
  Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      Log(LogLevel::kError, "{}: no further rank can join: {}", options_.socket, strerror(errno));
    return;
  }
  const int fd = socket.get();
  Connection connection{std::move(socket), Fd(), PeerOf(fd), nullptr};
  if (connection.pid > 0) connection.process = Fd(static_cast<int>(syscall(SYS_pidfd_open, connection.pid, 0)));
  if (connection.process.valid()) poller_.Watch(connection.process.get(), [this, fd] { Drop(fd); });
  connections_.emplace(fd, std::move(connection));
  poller_.Watch(fd, [this, fd] { Receive(fd); });
}

void Service::Receive(int socket) {
  const auto found = connections_.find(socket);
  if (found == connections_.end()) return;
  std::optional<Packet> packet = ReceivePacket(socket);
  if (!packet) return;
  if (packet->closed) return Drop(socket);
  Answer(found->second, *std::move(packet));
}

void Service::Drop(int socket) {
  const auto found = connections_.find(socket);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  poller_.Forget(socket);
  if (connection.process.valid()) poller_.Forget(connection.process.get());
  if (connection.rank != nullptr) {
    dispatcher_.Remove(connection.rank);
    Log(LogLevel::kInfo, "job {} rank {} (pid {}) has gone; what was held for it is free again",
        connection.rank->job->name, connection.rank->number, connection.pid);
  }
  connections_.erase(found);
}

void Service::Answer(Connection& connection, Packet packet) {
  if (packet.text == "r") {
    if (connection.rank != nullptr) dispatcher_.Refill(connection.rank);
    return;
  }
  const Json request = Json::parse(packet.text, nullptr, false);
  const std::string op = TextAt(request, "op");
  const int socket = connection.socket.get();
  absl::Status answered;
  if (op == "status") {
    answered = SendPacket(socket, Status().dump(-1, ' ', false, Json::error_handler_t::replace));
  } else if (op == "join" && connection.rank == nullptr) {
    const absl::Status joined = Join(connection, request, std::move(packet.fds));
    if (!joined.ok()) answered = SendPacket(socket, Error(joined).dump());
  } else {
    answered = SendPacket(socket, Error(InvalidArgument("expected join or status, found \"{}\"", op)).dump());
  }
  if (!answered.ok()) Drop(socket);
}

void Service::Tick() {
  uint64_t items = 0;
  dispatcher_.Look([&](const Dispatcher& dispatcher) { items = dispatcher.cache().used(); });
  HeapLimit(before_items_ + items + BesideItems(options_.threads)).Hold();
  std::set<sampling::Group*> groups;
  std::set<std::shared_ptr<const sampling::ItemSet>> sets;
  for (const auto& [socket, connection] : connections_) {
    if (connection.rank == nullptr) continue;
    groups.insert(connection.rank->job->epochs.group().get());
    sets.insert(connection.rank->job->set);
  }
  groups.erase(nullptr);
  for (sampling::Group* group : groups) Rechoose(*group);
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
  const auto quotas = splitter_.Solve(costs, {.threads = options_.threads, .items = wanted_items_, .budget = budget});
  if (quotas) dispatcher_.SetQuotas(*quotas);
}

// ---- joining ----

absl::Status Service::Join(Connection& connection, const Json& packet, std::vector<Fd> fds) {
  LS_ASSIGN_OR_RETURN(JoinRequest request, ParseJoin(packet));
  if (request.dataset != data_.name())
    return NotFound("there is no data set \"{}\" at {}; this service has \"{}\"", request.dataset, options_.socket,
                    data_.name());
  if (request.listed > 0) {
    LS_ASSIGN_OR_RETURN(request.where.listed, ReadIds(std::move(fds), request.listed));
  }
  LS_RETURN_IF_ERROR(CheckFree(request));
  const RingShape shape{request.slots, request.batch, data_.ItemBytes(request.recipe)};
  LS_RETURN_IF_ERROR(CheckRoom(shape));
  LS_ASSIGN_OR_RETURN(Joining joining, Prepare(request));
  const std::shared_ptr<Job> job = joining.job;
  const absl::Status entered = Enter(connection, request, shape, std::move(joining));
  if (!entered.ok() && Running(request.job) == nullptr)
    dispatcher_.Look([&](const Dispatcher&) { job->epochs.Leave(); });
  return entered;
}

absl::Status Service::Enter(Connection& connection, const JoinRequest& request, const RingShape& shape,
                            Joining joining) {
  LS_ASSIGN_OR_RETURN(Ring ring, Ring::Create(shape));
  const Json answer{{"state", joining.stream.Save()},
                    {"epoch", joining.stream.place().epoch},
                    {"items", joining.job->items()},
                    {"shape", data_.ItemShape(request.recipe)},
                    {"dtype", data_.ItemType(request.recipe)}};
  const Fd memory = ring.TakeFd();
  const int fd = memory.get();
  LS_RETURN_IF_ERROR(SendPacket(connection.socket.get(), answer.dump(), std::span(&fd, 1)));
  Log(LogLevel::kInfo, "job {} rank {} of {} (pid {}): {} items, from {} of epoch {} on", request.job, request.rank,
      request.world, connection.pid, joining.job->items(), joining.stream.place().taken, joining.stream.place().epoch);
  connection.rank = std::make_shared<Rank>(Rank{joining.job,
                                                request.rank,
                                                connection.pid,
                                                std::move(ring),
                                                std::move(joining.stream),
                                                0,
                                                0,
                                                {},
                                                clock_.Now(),
                                                false});
  dispatcher_.Add(connection.rank);
  return absl::OkStatus();
}

// Ranks that died a moment ago may be here again before their end has been noticed.
absl::Status Service::CheckFree(const JoinRequest& request) {
  std::vector<int> dead;
  for (const auto& [socket, other] : connections_) {
    if (other.rank == nullptr || other.rank->job->name != request.job) continue;
    std::vector<pollfd> ends{{socket, POLLRDHUP, 0}};
    if (other.process.valid()) ends.push_back({other.process.get(), POLLIN, 0});
    if (poll(ends.data(), ends.size(), 0) != 0) {
      dead.push_back(socket);
    } else if (other.rank->number == request.rank) {
      return FailedPrecondition("job \"{}\" has a rank {} already, process {}; give one of the two another name",
                                request.job, request.rank, other.pid);
    }
  }
  for (const int socket : dead) Drop(socket);
  return absl::OkStatus();
}

std::shared_ptr<Job> Service::Running(const std::string& name) const {
  for (const auto& [socket, other] : connections_)
    if (other.rank != nullptr && other.rank->job->name == name) return other.rank->job;
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
                                            .epochs = Epochs(key, request.world, GroupOf(request))});
  }
  LS_RETURN_IF_ERROR(Place(request, running == nullptr, joining));
  return joining;
}

// Where the rank begins, or goes on. The first rank of a job takes it into its group.
absl::Status Service::Place(const JoinRequest& request, bool is_first_rank, Joining& joining) {
  Job& job = *joining.job;
  sampling::Group* group = job.epochs.group().get();
  if (is_first_rank && group != nullptr) {
    dispatcher_.Look([&](const Dispatcher&) { group->Join(job.key, job.set); });
    Rechoose(*group);
  }
  absl::Status placed;
  dispatcher_.Look([&](const Dispatcher& dispatcher) {
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
  for (const auto& [socket, other] : connections_)
    if (other.rank != nullptr && other.rank->job->seed == request.seed && other.rank->job->epochs.group() != nullptr)
      return other.rank->job->epochs.group();
  return std::make_shared<sampling::Group>(sampling::GroupOptions{
      .items = data_.items(), .seed = request.seed, .cache_items = cache_items_, .policy = options_.policy});
}

// The rehearsals run without the lock: threads go on preparing meanwhile.
void Service::Rechoose(sampling::Group& group) {
  std::optional<sampling::GroupQuestion> question;
  dispatcher_.Look([&](const Dispatcher&) {
    if (group.IsStale()) question = group.Ask();
  });
  if (!question) return;
  const sampling::GroupChoice choice = sampling::Choose(*question);
  dispatcher_.Look([&](const Dispatcher&) {
    if (choice.policy != group.choice().policy)
      Log(LogLevel::kInfo, "jobs of seed {}: {} orders from their next epochs on", group.options().seed,
          sampling::NameOf(choice.policy));
    group.Decide(choice);
  });
}

absl::Status Service::CheckRoom(const RingShape& shape) const {
  const uint64_t limit = options_.ring_bytes != 0 ? options_.ring_bytes : HalfOfMemory();
  uint64_t used = 0;
  for (const auto& [socket, connection] : connections_)
    if (connection.rank != nullptr) used += RingBytes(connection.rank->ring.shape());
  if (used + RingBytes(shape) <= limit) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   fmt::format("batches of all jobs: {} MB are in use, this rank's {} x {} would be {} MB more, and {} "
                               "MB are allowed; take a smaller batch or prefetch, or raise --ring-memory",
                               used >> 20, shape.slots, SlotStride(shape), RingBytes(shape) >> 20, limit >> 20));
}

// ---- status ----

Json Service::Status() const {
  return StatusReport(data_, options_.socket, clock_.Now() - started_, dispatcher_, splitter_.split());
}

absl::StatusOr<Json> AskStatus(const std::string& path) {
  const absl::StatusOr<Fd> socket = ConnectTo(path);
  if (!socket.ok())
    return NotFound("{}: no data service answers; start one with `lockstep feed serve --data DIR`", path);
  LS_RETURN_IF_ERROR(SendPacket(socket->get(), R"({"op":"status"})"));
  pollfd answer{socket->get(), POLLIN, 0};
  if (poll(&answer, 1, kAnswerMs) <= 0) return Unavailable("{}: no answer for {} ms", path, kAnswerMs);
  const std::optional<Packet> packet = ReceivePacket(socket->get());
  Json report = packet ? Json::parse(packet->text, nullptr, false) : Json();
  if (!report.is_object()) return Unavailable("{}: the service gave no answer", path);
  return report;
}

}  // namespace lockstep::feed
