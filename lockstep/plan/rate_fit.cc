#include "lockstep/plan/rate_fit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/plan/normal_equations.h"

namespace lockstep::plan {
namespace {

// Of residuals (logarithms): beyond about 0.4, more error costs little more. So few degrees of freedom that a run of
// another kind does not bend the rest; so many that no family is too fast, or too slow, in the mean.
constexpr double kScatter = .05, kFreedom = 60, kWeight = 2;
// Of an unknown, in its field's spread.
constexpr double kCommon = 1, kOfKind = 1, kOfHardware = 1.2, kOfStack = .7;
constexpr double kNudge = 1e-4, kMostStep = 1;
constexpr double kFirstDamping = 1e-2, kLeastDamping = 1e-6, kMoreDamping = 4, kLessDamping = 3;
constexpr int kMostSteps = 60, kMostTries = 8;
constexpr double kDone = 1e-4;  // share of the cost that a step has to save

size_t IndexIn(std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

// By family, the root of how many there are.
std::vector<double> WeightsOf(const Runs& runs) {
  std::map<std::string, double> sizes;
  for (const MeasuredRun* run : runs) ++sizes[run->family()];
  std::vector<double> weights;
  for (const MeasuredRun* run : runs) weights.push_back(kWeight / std::sqrt(sizes[run->family()]));
  return weights;
}

}  // namespace

RateFit::RateFit(const Runs& runs, const Known& known, const Calibration* base)
    : runs_(runs), known_(known), weights_(WeightsOf(runs)) {
  for (const Machines::Named& named : known.machines.all()) IndexIn(hardware_, named.machine.rates);
  for (const Stack& stack : known.stacks.all()) kind_of_.push_back(IndexIn(kinds_, stack.kind));
  std::map<std::pair<size_t, size_t>, std::vector<size_t>> groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Workload& work = runs[i]->workload();
    const Stack* stack = known.stacks.Find(work.stack);
    const size_t of_stack = stack == nullptr ? 0 : static_cast<size_t>(stack - known.stacks.all().data());
    groups[{IndexIn(hardware_, work.machine.rates), of_stack}].push_back(i);
  }
  for (auto& [pair, members] : groups) groups_.push_back({pair.first, pair.second, std::move(members)});
  Place();
  if (base != nullptr) TakeBase(*base);
  at_ = usual_;
}

void RateFit::Place() {
  static const Rates kUsual;
  for (const RateField& field : RateFields()) {
    const auto add = [&](size_t count, double usual, double spread) {
      usual_.insert(usual_.end(), count, usual);
      pull_.insert(pull_.end(), count, 1 / (spread * spread * field.spread * field.spread));
    };
    first_.push_back(usual_.size());
    offset_.emplace_back(field.scope == Scope::kHardware ? hardware_.size() : kind_of_.size());
    add(1, ToUnknown(field, kUsual.*field.member), kCommon);
    if (field.scope == Scope::kHardware) {
      add(hardware_.size(), 0, kOfHardware);
    } else {
      add(kinds_.size(), 0, kOfKind);
      add(kind_of_.size(), 0, kOfStack);
    }
  }
}

void RateFit::TakeBase(const Calibration& base) {
  const auto fields = RateFields();
  const auto take = [&](Scope scope, size_t owner, const Rates& rates) {
    for (size_t f = 0; f < fields.size(); ++f)
      if (fields[f].scope == scope)
        offset_[f][owner] = ToUnknown(fields[f], rates.*fields[f].member) - usual_[first_[f]];
  };
  for (size_t i = 0; i < hardware_.size(); ++i)
    if (const auto known = base.hardware.find(hardware_[i]); known != base.hardware.end())
      take(Scope::kHardware, i, known->second);
  for (size_t i = 0; i < kind_of_.size(); ++i)
    if (const Stack* stack = base.stacks.Find(known_.stacks.all()[i].name)) take(Scope::kStack, i, stack->habits);
}

RateFit::Terms RateFit::TermsOf(size_t field, size_t hardware, size_t stack) const {
  const size_t first = first_[field];
  if (RateFields()[field].scope == Scope::kHardware) return {2, {first, first + 1 + hardware}};
  return {3, {first, first + 1 + kind_of_[stack], first + 1 + kinds_.size() + stack}};
}

double RateFit::Sum(const std::vector<double>& at, size_t field, size_t hardware, size_t stack) const {
  const Terms terms = TermsOf(field, hardware, stack);
  double sum = offset_[field][RateFields()[field].scope == Scope::kHardware ? hardware : stack];
  for (size_t i = 0; i < terms.count; ++i) sum += at[terms.index[i]];
  return sum;
}

Rates RateFit::RatesOf(const std::vector<double>& at, size_t hardware, size_t stack) const {
  Rates rates;
  for (size_t i = 0; i < RateFields().size(); ++i)
    rates.*RateFields()[i].member = FromUnknown(RateFields()[i], Sum(at, i, hardware, stack));
  return rates;
}

std::vector<double> RateFit::Residuals(const std::vector<double>& at) const {
  std::vector<double> residuals(runs_.size());
  for (const Group& group : groups_) {
    const Rates rates = RatesOf(at, group.hardware, group.stack);
    for (const size_t i : group.runs)
      residuals[i] = std::log(runs_[i]->Measured().step_s / PredictedSeconds(*runs_[i], rates));
  }
  return residuals;
}

double RateFit::Cost(const std::vector<double>& at, const std::vector<double>& residuals) const {
  double cost = 0;
  for (size_t i = 0; i < residuals.size(); ++i)
    cost += weights_[i] * kFreedom * std::log1p(residuals[i] * residuals[i] / (kFreedom * kScatter * kScatter));
  for (size_t i = 0; i < at.size(); ++i) cost += pull_[i] * (at[i] - usual_[i]) * (at[i] - usual_[i]);
  return cost;
}

RateFit::Normal RateFit::Linearized(const std::vector<double>& residuals) const {
  const size_t n = at_.size();
  Normal normal{std::vector<double>(n * n), std::vector<double>(n)};
  for (size_t i = 0; i < n; ++i) {
    normal.matrix[i * n + i] = pull_[i];
    normal.right[i] = -pull_[i] * (at_[i] - usual_[i]);
  }
  for (const Group& group : groups_) AddGroup(group, residuals, normal);
  return normal;
}

RateFit::Normal RateFit::ByField(const Group& group, const std::vector<double>& residuals) const {
  const auto fields = RateFields();
  const size_t n = fields.size();
  const Rates rates = RatesOf(at_, group.hardware, group.stack);
  std::vector<Rates> nudged(n, rates);
  for (size_t f = 0; f < n; ++f)
    nudged[f].*fields[f].member = FromUnknown(fields[f], Sum(at_, f, group.hardware, group.stack) + kNudge);
  Normal sums{std::vector<double>(n * n), std::vector<double>(n)};
  std::vector<double> slopes(n);
  for (const size_t i : group.runs) {
    const double predicted = PredictedSeconds(*runs_[i], rates), residual = residuals[i];
    for (size_t f = 0; f < n; ++f) slopes[f] = std::log(PredictedSeconds(*runs_[i], nudged[f]) / predicted) / kNudge;
    const double far = 1 + residual * residual / (kFreedom * kScatter * kScatter);
    const double weight = weights_[i] / (kScatter * kScatter * far);
    for (size_t f = 0; f < n; ++f) {
      sums.right[f] += weight * slopes[f] * residual;
      for (size_t g = 0; g < n; ++g) sums.matrix[f * n + g] += weight * slopes[f] * slopes[g];
    }
  }
  return sums;
}

// Runs of a group depend on the same unknowns, so they are summed up by field first.
void RateFit::AddGroup(const Group& group, const std::vector<double>& residuals, Normal& normal) const {
  const Normal sums = ByField(group, residuals);
  const size_t fields = first_.size(), n = at_.size();
  std::vector<Terms> terms;
  terms.reserve(fields);
  for (size_t f = 0; f < fields; ++f) terms.push_back(TermsOf(f, group.hardware, group.stack));
  for (size_t f = 0; f < fields; ++f) {
    for (size_t a = 0; a < terms[f].count; ++a) {
      const size_t row = terms[f].index[a];
      normal.right[row] += sums.right[f];
      for (size_t g = 0; g < fields; ++g)
        for (size_t b = 0; b < terms[g].count; ++b)
          normal.matrix[row * n + terms[g].index[b]] += sums.matrix[f * fields + g];
    }
  }
}

void RateFit::Solve() {
  std::vector<double> residuals = Residuals(at_);
  double cost = Cost(at_, residuals), damping = kFirstDamping;
  for (int step = 0; step < kMostSteps; ++step) {
    const Normal normal = Linearized(residuals);
    const double before = cost;
    for (int i = 0; i < kMostTries && cost == before; ++i, damping *= kMoreDamping) {
      std::vector<double> tried = SolveDamped(normal.matrix, normal.right, damping);
      for (size_t k = 0; k < tried.size(); ++k) tried[k] = at_[k] + std::clamp(tried[k], -kMostStep, kMostStep);
      std::vector<double> then = Residuals(tried);
      const double costs = Cost(tried, then);
      if (!(costs < cost)) continue;
      cost = costs;
      at_ = std::move(tried);
      residuals = std::move(then);
    }
    if (before - cost < kDone * before) return;
    damping = std::max(damping / kMoreDamping / kLessDamping, kLeastDamping);
  }
}

// A stack or hardware that no run has gets what is usual for its kind.
Calibration RateFit::Result() const {
  Calibration result;
  const std::vector<Stack>& stacks = known_.stacks.all();
  const std::vector<double> covariance = Inverse(Linearized(Residuals(at_)).matrix, at_.size());
  for (size_t i = 0; i < hardware_.size(); ++i) {
    Rates& rates = result.hardware[hardware_[i]] = WithHabits(RatesOf(at_, i, 0), Stack{});
    TakeUnsure(covariance, i, 0, Scope::kHardware, rates);
  }
  std::vector<Stack> fitted = stacks;
  for (size_t i = 0; i < stacks.size(); ++i) {
    fitted[i].habits = RatesOf(at_, 0, i);
    TakeUnsure(covariance, 0, i, Scope::kStack, fitted[i].habits);
  }
  result.stacks = Stacks(std::move(fitted));
  return result;
}

void RateFit::TakeUnsure(const std::vector<double>& covariance, size_t hardware, size_t stack, Scope scope,
                         Rates& rates) const {
  const auto fields = RateFields();
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].scope != scope) continue;
    const Terms terms = TermsOf(f, hardware, stack);
    double variance = 0;
    for (size_t a = 0; a < terms.count; ++a)
      for (size_t b = 0; b < terms.count; ++b) variance += covariance[terms.index[a] * at_.size() + terms.index[b]];
    rates.unsure[f] = std::sqrt(std::max(0.0, variance));
  }
}

}  // namespace lockstep::plan
