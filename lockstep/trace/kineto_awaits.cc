#include "lockstep/trace/kineto_awaits.h"

#include <algorithm>

namespace lockstep::trace {

void AwaitReceives(RoleForm& form, const std::vector<size_t>& received, const std::vector<size_t>& sent,
                   const std::vector<size_t>& returned) {
  for (size_t n = 0; n < received.size(); ++n) {
    const size_t receive = received[n];
    if (form.awaited_cut[receive] != RoleForm::kNever) continue;
    size_t from = RoleForm::kNever;
    if (n < sent.size() && receive < sent[n]) from = form.input_cut[sent[n]] - 1;
    if (sent.empty() && n < returned.size() && receive < returned[n])
      from = n == 0 ? 0 : form.input_cut[returned[n - 1]];  // behind the backward before
    if (from != RoleForm::kNever && from >= form.input_cut[receive]) form.awaited_cut[receive] = from;
  }
}

void AwaitReceivesBeside(RoleForm& form, const std::vector<size_t>& received, const std::vector<size_t>& others) {
  const std::vector<size_t> seen = form.awaited_cut;
  const auto is_awaited = [&](size_t cut) {
    const auto there = [&](size_t receive) { return seen[receive] == cut; };
    return std::ranges::any_of(received, there) || std::ranges::any_of(others, there);
  };
  size_t before = 0;
  for (size_t n = 0; n < received.size(); ++n) {
    size_t& awaited = form.awaited_cut[received[n]];
    const size_t cut = form.input_cut[received[n]] + 1;
    if (awaited == RoleForm::kNever && cut > before && cut + 1 < form.cuts && !is_awaited(cut)) awaited = cut;
    if (awaited != RoleForm::kNever) before = awaited;
  }
}

}  // namespace lockstep::trace
