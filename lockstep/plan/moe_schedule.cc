#include "lockstep/plan/moe_schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/csv.h"
#include "lockstep/base/number.h"

namespace lockstep::plan {
namespace {

constexpr int kMostChunks = 32;

double RoutedTokens(const MoeLayer& layer) { return layer.top_k * layer.capacity * layer.tokens; }
double RoutedBytes(const MoeLayer& layer) { return RoutedTokens(layer) * layer.hidden * layer.bytes; }
// Of one product of an expert's shard.
double Operations(const MoeLayer& layer, double tokens) { return 2 * tokens * layer.hidden * layer.ffn / layer.esp; }

// FSMoE's tables of cases, for r chunks of these times.
FsmoePlan PlanOf(int r, double a, double g, double s, double e, double t) {
  const bool q1 = a > g, q2 = r * e > 2 * (r - 1) * a, q3 = r * e > (r - 1) * (g + s);
  const bool q4 = t > g + s, q5 = t > r * e - 2 * (r - 1) * a + g + s, q6 = t > r * g + r * s - 2 * (r - 1) * a;
  const bool q7 = t > g + s + r * e - 2 * (r - 1) * a;
  if (q1 ? (q2 ? q5 : q4) : (q3 ? q7 : q6)) return {r, 1, 2 * r * a + t};
  if (q1 ? q2 : q3) return {r, 2, 2 * a + g + s + r * e};
  if (q1) return {r, 3, 2 * r * a + g + s};
  return {r, 4, 2 * a + r * g + r * s};
}

}  // namespace

ParmTimes PredictParm(const MoeLayer& layer, const MoeCosts& costs) {
  const double in = layer.tokens * layer.hidden * layer.bytes, routed = RoutedBytes(layer);
  const double share = routed * layer.esp / layer.mp, n = layer.ep * layer.esp;
  const auto experts = [&](double tokens) { return layer.products * costs.product(Operations(layer, tokens)); };
  ParmTimes times;
  const double all = routed * layer.esp;
  times.baseline = costs.all_gather(in * layer.esp) + 2 * costs.all_to_all(all) + costs.reduce_scatter(all) +
                   costs.all_gather(all) + experts(RoutedTokens(layer) * layer.esp);
  const double split = experts(RoutedTokens(layer) * layer.esp / layer.mp);
  times.s1 = 2 * costs.all_to_all(share) + costs.all_gather(in) + split;
  // The exchange in n pieces, each of which is gathered while the next one is on its way.
  const double piece = costs.all_to_all(share) / n, gathered = costs.all_gather(routed / n);
  times.s2 = costs.all_to_all(share) + piece + (n - 1) * std::max(piece, gathered) + gathered + split;
  return times;
}

FsmoePlan PlanFsmoe(const MoeLayer& layer, const MoeCosts& costs, MoePass pass, double gradients) {
  const double routed = RoutedBytes(layer), products = layer.products * (pass == MoePass::kBackward ? 2 : 1);
  const double operations = Operations(layer, RoutedTokens(layer));
  FsmoePlan best;
  for (int r = 1; r <= kMostChunks; ++r) {
    const FsmoePlan plan =
        PlanOf(r, costs.all_to_all(routed / layer.mp / r), costs.all_gather(routed / r),
               costs.reduce_scatter(routed / r), products * costs.product(operations / r), gradients);
    if (r == 1 || plan.ms < best.ms) best = plan;
  }
  return best;
}

namespace {

constexpr double kMostNumber = 1e12;  // of a size, or of milliseconds
constexpr double kMostWhole = 1e6;    // ranks, or chunks

// Fields of a row of a grid; the first that is no number is remembered.
class Fields {
 public:
  Fields(const CsvTable& table, const CsvRow& row) : table_(table), row_(row) {}
  std::string Text(const char* column) const { return std::string(table_.Field(row_, column)); }
  double Number(const char* column) {
    const std::string_view text = table_.Field(row_, column);
    const double value = WholeNumber<double>(text).value_or(0);
    const bool is_number = value > 0 && value <= kMostNumber;
    if (!is_number)
      Fail(InvalidArgument("column {} is \"{}\"; expected a number above 0, at most {:g}", column, text, kMostNumber));
    return is_number ? value : 1;
  }
  // One of these; the first, where it is none.
  std::string OneOf(const char* column, std::initializer_list<const char*> names) {
    const std::string text = Text(column);
    for (const char* name : names)
      if (text == name) return text;
    Fail(InvalidArgument("column {} is \"{}\"; expected one of {}", column, text, fmt::join(names, ", ")));
    return *names.begin();
  }
  int Integer(const char* column) {
    const double value = Number(column);
    if (value == std::floor(value) && value <= kMostWhole) return static_cast<int>(value);
    Fail(InvalidArgument("column {} is {:g}; expected a whole number, at most {:g}", column, value, kMostWhole));
    return 1;
  }
  bool Has(const char* column) const { return table_.Column(column).has_value(); }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }

 private:
  const CsvTable& table_;
  const CsvRow& row_;
  absl::Status status_;
};

struct Compared {
  bool wrong_choice = false;
  double error = 0;
};

double Error(double ours, double theirs) { return std::abs(ours - theirs) / theirs; }

Compared CompareParm(Fields& row) {
  MoeLayer layer{row.Number("B") * row.Number("L"), row.Number("M"), row.Number("H"), row.Number("k"), row.Number("f")};
  layer.mp = row.Integer("N_MP");
  layer.ep = row.Integer("N_EP");
  layer.esp = row.Integer("N_ESP");
  if (row.Has("P") && row.Integer("P") != double(layer.ep) * layer.esp)
    row.Fail(InvalidArgument("column P is {}, not N_EP {} x N_ESP {}", row.Integer("P"), layer.ep, layer.esp));
  const ParmTimes times = PredictParm(layer, kFsmoeTestbedB);
  const double worst = std::max({Error(times.baseline, row.Number("t_base_ms")), Error(times.s1, row.Number("t_S1_ms")),
                                 Error(times.s2, row.Number("t_S2_ms"))});
  return {row.OneOf("choice", {"S1", "S2"}) != (times.s1 <= times.s2 ? "S1" : "S2"), worst};
}

// All experts that a token is sent to take it where f is "*". Both kinds of parallelism are as wide as a node.
Compared CompareFsmoe(Fields& row) {
  const bool is_a = row.OneOf("testbed", {"A", "B"}) == "A", no_drop = row.Text("f") == "*";
  const double hidden = row.Number("M");
  MoeLayer layer{row.Number("B") * row.Number("L"), hidden, hidden * row.Number("hscale"), 2,
                 no_drop ? 1 : row.Number("f")};
  layer.products = row.OneOf("ffn", {"simple", "Mixtral"}) == "simple" ? 2 : 3;
  layer.mp = layer.esp = is_a ? 8 : 4;
  const MoePass pass = row.OneOf("phase", {"fwd", "bwd"}) == "bwd" ? MoePass::kBackward : MoePass::kForward;
  const FsmoePlan plan = PlanFsmoe(layer, is_a ? kFsmoeTestbedA : kFsmoeTestbedB, pass);
  const bool wrong = plan.chunks != row.Integer("best_r") || plan.bound != row.Integer("case");
  return {wrong, Error(plan.ms, row.Number("t_ms"))};
}

}  // namespace

absl::StatusOr<Json> CompareMoe(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(path));
  const bool is_parm = table.Column("t_S1_ms").has_value();
  if (!is_parm && !table.Column("best_r"))
    return InvalidArgument("{}: it has neither the columns of Parm's grid (t_S1_ms) nor of FSMoE's (best_r)", path);
  if (table.rows.empty()) return InvalidArgument("{}: there is no row to compare with", path);
  int rows = 0, wrong = 0;
  double worst = 0;
  Json skipped = Json::array();
  for (const CsvRow& one : table.rows) {
    Fields row(table, one);
    const Compared compared = is_parm ? CompareParm(row) : CompareFsmoe(row);
    if (!row.status().ok()) {
      skipped.push_back({{"row", one.line}, {"why", Message(row.status())}});
      continue;
    }
    ++rows;
    wrong += compared.wrong_choice;
    worst = std::max(worst, compared.error);
  }
  return Json{
      {"rows", rows}, {"wrong_choices", wrong}, {"max_rel_ms", rows > 0 ? Json(worst) : Json()}, {"skipped", skipped}};
}

}  // namespace lockstep::plan
