#include "lockstep/node/update.h"

#include <nlohmann/json.hpp>

#include "lockstep/node/query.h"

namespace lockstep::node {

Json AnswerUpdate(const Json& request, Head* head, const std::string& coordinator) {
  if (head == nullptr) {
    return {{"error",
             coordinator.empty() ? "the job has not begun: start it with the new code" : AskElsewhere(coordinator)}};
  }
  const absl::StatusOr<control::UpdateAsked> asked = control::UpdateFromJson(request);
  if (!asked.ok()) return {{"error", Message(asked.status())}};
  if (head->state().mode == control::Mode::kFinished)
    return {{"error", fmt::format("this run has ended: {}", head->state().verdict)}};
  return head->Update(*asked);
}

}  // namespace lockstep::node
