// Tells somebody else's HTTP server about incidents: one POST with the incident's JSON for each. Best effort beside the
// job, never in its way. Invariants: Post never blocks; a full queue drops the newest and counts it; every message ends
// as delivered, failed or dropped, except those that are waiting at destruction. A message is tried up to `tries`
// times, unless the answer says that asking again is useless (4xx but 408 and 429); redirects are not followed. Of an
// answer only the status counts: what follows it is neither kept nor waited for beyond the timeouts.
// Destruction takes at most 100 ms and aborts what is in flight. The URL's path and query may be a secret (chat
// services): no message of ours shows them. Thread-safe. One thread of its own, and a short-lived one per name look-up.
//
//   LS_ASSIGN_OR_RETURN(auto webhook, Webhook::Start({.url = "http://alerts.example:9000/hook"}));
//   webhook->Post(incident::ToJson(incident));
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::serve {

struct WebhookOptions {
  std::string url{};   // http://host[:port][/path][?query], or https://
  Seconds timeout{2};  // each for: looking the name up, connecting, sending, the answer
  int tries = 3;
  Seconds backoff{0.5};  // before the second try; doubled for each further one
  size_t queue = 64;     // messages waiting at most
};

struct WebhookCounts {
  int64_t delivered = 0, failed = 0, dropped = 0;
};
Json ToJson(const WebhookCounts& counts);

class Webhook {
 public:
  static absl::StatusOr<std::unique_ptr<Webhook>> Start(const WebhookOptions& options);
  ~Webhook();
  void Post(const Json& incident);
  WebhookCounts counts() const;
  // Waits until nothing is queued or in flight, at most so long; false if something still is. For the end of a run.
  bool Drain(Seconds at_most);

 private:
  class Impl;
  explicit Webhook(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::serve
