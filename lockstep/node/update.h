// `lockstep update`, as the process that watches a run answers it.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/node/head.h"

namespace lockstep::node {

// {number, stage, ...} of the version that was made of the request, or {error}. `head`: none, where nobody leads the
// job; `coordinator`: who does, if that is known.
Json AnswerUpdate(const Json& request, Head* head, const std::string& coordinator);

}  // namespace lockstep::node
