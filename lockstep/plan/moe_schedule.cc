#include "lockstep/plan/moe_schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/csv.h"
#include "lockstep/base/number.h"
#include "lockstep/plan/measured_row.h"

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
constexpr double kMostRanks = 1e6;    // or chunks

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
  double Whole(const char* column, double most = kMostNumber) {
    const double value = Number(column);
    if (value == std::floor(value) && value <= most) return value;
    Fail(InvalidArgument("column {} is {:g}; expected a whole number, at most {:g}", column, value, most));
    return 1;
  }
  int Ranks(const char* column) { return static_cast<int>(Whole(column, kMostRanks)); }
  // Whether the row says it.
  bool Has(const char* column) const { return !KnownText(table_.Field(row_, column)).empty(); }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }

 private:
  const CsvTable& table_;
  const CsvRow& row_;
  absl::Status status_;
};

// A time or a choice, computed here, and by whom the grid is from; null where it does not say.
struct Answer {
  const char* column;
  Json ours, theirs;
  bool is_time() const { return ours.is_number_float(); }
  bool is_compared() const { return !theirs.is_null(); }
};
using Answers = std::vector<Answer>;

Json TimeIn(Fields& row, const char* column) { return row.Has(column) ? Json(row.Number(column)) : Json(); }
Json WholeIn(Fields& row, const char* column) { return row.Has(column) ? Json(row.Ranks(column)) : Json(); }

// How far a row is from what the grid has.
struct Distance {
  bool wrong_choice = false;
  double error = 0;
  auto operator<=>(const Distance&) const = default;
};
Distance DistanceOf(const Answers& answers) {
  Distance distance;
  for (const Answer& one : answers) {
    if (!one.is_compared()) continue;
    if (!one.is_time()) {
      distance.wrong_choice = distance.wrong_choice || one.ours != one.theirs;
    } else {
      const double ours = one.ours.get<double>(), theirs = one.theirs.get<double>();
      distance.error = std::max(distance.error, std::abs(ours - theirs) / theirs);
    }
  }
  return distance;
}

Answers AnswersOfParm(Fields& row) {
  const double tokens = row.Whole("B") * row.Whole("L");
  MoeLayer layer{tokens, row.Whole("M"), row.Whole("H"), row.Whole("k"), row.Number("f")};
  layer.mp = row.Ranks("N_MP");
  layer.ep = row.Ranks("N_EP");
  layer.esp = row.Ranks("N_ESP");
  if (row.Has("P") && row.Ranks("P") != double(layer.ep) * layer.esp)
    row.Fail(InvalidArgument("column P is {}, not N_EP {} x N_ESP {}", row.Ranks("P"), layer.ep, layer.esp));
  const ParmTimes times = PredictParm(layer, kFsmoeTestbedB);
  return {{"choice", times.s1 <= times.s2 ? "S1" : "S2",
           row.Has("choice") ? Json(row.OneOf("choice", {"S1", "S2"})) : Json()},
          {"t_base_ms", times.baseline, TimeIn(row, "t_base_ms")},
          {"t_S1_ms", times.s1, TimeIn(row, "t_S1_ms")},
          {"t_S2_ms", times.s2, TimeIn(row, "t_S2_ms")}};
}

// All experts that a token is sent to take it where f is "*". Both kinds of parallelism are as wide as a node.
Answers AnswersOfFsmoe(Fields& row) {
  const bool is_a = row.OneOf("testbed", {"A", "B"}) == "A", no_drop = row.Text("f") == "*";
  const double hidden = row.Whole("M"), tokens = row.Whole("B") * row.Whole("L");
  MoeLayer layer{tokens, hidden, hidden * row.Number("hscale"), 2, no_drop ? 1 : row.Number("f")};
  layer.products = row.OneOf("ffn", {"simple", "Mixtral"}) == "simple" ? 2 : 3;
  layer.mp = layer.esp = is_a ? 8 : 4;
  const MoePass pass = row.OneOf("phase", {"fwd", "bwd"}) == "bwd" ? MoePass::kBackward : MoePass::kForward;
  const FsmoePlan plan = PlanFsmoe(layer, is_a ? kFsmoeTestbedA : kFsmoeTestbedB, pass);
  return {{"best_r", plan.chunks, WholeIn(row, "best_r")},
          {"case", plan.bound, WholeIn(row, "case")},
          {"t_ms", plan.ms, TimeIn(row, "t_ms")}};
}

Json WorstRow(int64_t line, const Answers& answers) {
  Json worst = {{"row", line}};
  for (const Answer& one : answers)
    if (one.is_compared()) worst[one.column] = {one.ours, one.theirs};
  return worst;
}

Json ChoiceRow(int64_t line, const Answers& answers) {
  Json choice = {{"row", line}};
  for (const Answer& one : answers) choice[one.column] = one.ours;
  return choice;
}

}  // namespace

absl::StatusOr<Json> CompareMoe(const std::string& path, bool with_choices) {
  LS_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(path));
  const bool is_parm = table.Column("N_MP").has_value();
  if (!is_parm && !table.Column("testbed"))
    return InvalidArgument("{}: it has neither the columns of Parm's grid (N_MP) nor of FSMoE's (testbed)", path);
  if (table.rows.empty()) return InvalidArgument("{}: there is no row to compute", path);
  int rows = 0, wrong = 0;
  bool has_choices = false, has_times = false;  // to compare with
  Distance most;
  double error = 0;
  Json worst, skipped = Json::array(), choices = Json::array();
  for (const CsvRow& one : table.rows) {
    Fields row(table, one);
    const Answers answers = is_parm ? AnswersOfParm(row) : AnswersOfFsmoe(row);
    if (!row.status().ok()) {
      skipped.push_back({{"row", one.line}, {"why", Message(row.status())}});
      continue;
    }
    ++rows;
    choices.push_back(ChoiceRow(one.line, answers));
    if (std::ranges::none_of(answers, &Answer::is_compared)) continue;
    for (const Answer& answer : answers) (answer.is_time() ? has_times : has_choices) |= answer.is_compared();
    const Distance distance = DistanceOf(answers);
    wrong += distance.wrong_choice;
    error = std::max(error, distance.error);
    if (worst.is_null() || distance > most) worst = WorstRow(one.line, answers), most = distance;
  }
  Json report = {{"rows", rows},
                 {"wrong_choices", has_choices ? Json(wrong) : Json()},
                 {"max_rel_ms", has_times ? Json(error) : Json()},
                 {"worst", worst},
                 {"skipped", skipped}};
  if (with_choices || worst.is_null()) report["choices"] = choices;
  return report;
}

}  // namespace lockstep::plan
