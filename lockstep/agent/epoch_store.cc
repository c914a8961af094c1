#include "lockstep/agent/epoch_store.h"

#include <fmt/format.h>

#include <optional>

#include "lockstep/agent/launch.h"
#include "lockstep/base/host.h"
#include "lockstep/base/split.h"

namespace lockstep::agent {

// Who is known to others by loopback is on the coordinator's machine, as we may be.
std::string WhyOutOfReach(const RunSpec& spec, const std::string& host) {
  const bool ours = spec.place.node == 0 || spec.coordinator.empty();
  if (ours || !IsLoopback(host) || IsLoopback(spec.address)) return "";
  for (const std::string& text : Split(spec.coordinator, ',')) {
    const std::optional<Endpoint> endpoint = ParseEndpoint(text);
    if (endpoint && IsOwnAddress(endpoint->host).value_or(false)) return "";
  }
  return fmt::format(
      "{} is on another machine than node 0, whose address is {}: start node 0 with --local-addr and an address of its "
      "machine that others reach, or name the coordinator by one there",
      spec.node_name, host);
}

void EpochStore::Host(uint64_t epoch, int restart_count) {
  if (epoch < epoch_) return;
  if (epoch == epoch_) return Tell();
  epoch_ = epoch;
  restart_count_ = restart_count;
  port_ = 0;
  hosted_ = true;
  if (host_.known()) host_.AskStore(epoch_, WantedPort());
}

void EpochStore::HostIsKnown() {
  if (epoch_ != 0) host_.AskStore(epoch_, WantedPort());
}

// A port that a user chose is for the first epoch of a run: in the next one, the connections of the last may still hold
// it.
int EpochStore::WantedPort() const { return restart_count_ == 0 ? spec_.torchrun.master_port : 0; }

void EpochStore::Answered(uint64_t epoch, int port) {
  if (epoch != epoch_) return;
  port_ = port;
  if (port == 0) {
    const auto free_port = FreePort(WantedPort());
    if (!free_port.ok()) return listener_.failed(epoch, Message(free_port.status()));
    if (const int wanted = WantedPort(); wanted != 0 && *free_port != wanted)
      listener_.note(fmt::format("--master-port {} can't be had (it is taken): MASTER_PORT is {}", wanted, *free_port));
    port_ = *free_port;
    hosted_ = false;
  }
  Tell();
}

void EpochStore::Tell() {
  if (port_ != 0) listener_.is_at(epoch_, port_, hosted_);
}

}  // namespace lockstep::agent
