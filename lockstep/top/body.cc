#include "lockstep/top/body.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lockstep/base/median.h"
#include "lockstep/term/lines.h"
#include "lockstep/term/text.h"

namespace lockstep::top {
namespace {

constexpr size_t kBesideStrip = 46;  // columns of a row without its strip
constexpr size_t kIncidentsBelow = 4;

constexpr const char* kHelp[] = {
    "  arrows, j k   select a row",
    "  enter         a rank's stacks; a folded row's ranks",
    "  esc, left, h  back",
    "  i             incidents",
    "  g             fold by another group: node; with --job-file tp, cp, ep, dp, pp",
    "  space, b      a page on, a page back (stacks)",
    "  ?             this help",
    "  q             quit: the job goes on",
    "",
    "  Worst ranks come first: who does not run, who is behind, who is slow.",
    "  The strip shows a step time against the slowest rank's.",
};

int StripWidth(size_t columns) {
  return columns <= kBesideStrip ? 0 : static_cast<int>(std::min<size_t>(columns - kBesideStrip, 60));
}

// Marked in front and by bold type: reversed video would end at the first colour in the line.
std::string Marked(const std::string& line, bool selected) {
  return selected ? std::string(term::kBold) + ">" + line.substr(1) + term::kPlain : line;
}

using ByNumber = std::map<int, const Json*>;

ByNumber Index(const Json& ranks) {
  ByNumber index;
  for (const Json& rank : ranks) index[rank.value("rank", 0)] = &rank;
  return index;
}

// "7 running, 1 stopped"
std::string StatesText(const Row& row, const ByNumber& index) {
  std::map<std::string, int> counts;
  for (const int rank : row.ranks) ++counts[term::Word(*index.at(rank), "state")];
  std::string text;
  for (const auto& [state, count] : counts)
    text += fmt::format("{}{} {}{}{}", text.empty() ? "" : ", ", count, term::ColourOf(state), state, term::kPlain);
  return text;
}

std::string GroupLine(const Row& row, const ByNumber& index, double slowest, int strip) {
  double longest = std::nan("");
  int64_t step = INT64_MAX;
  for (const int rank : row.ranks) {
    longest = std::fmax(longest, term::StepTime(*index.at(rank)));
    step = std::min(step, index.at(rank)->value("step", int64_t{-1}));
  }
  return fmt::format("  {:<10} {}  step {}  {}  {}", row.name, StatesText(row, index), step,
                     term::Known(1000 * longest, "{:.0f} ms"), term::Strip(longest, slowest, strip));
}

std::string RowLine(const Row& row, const ByNumber& index, double slowest, int strip) {
  return row.ranks.size() == 1 ? term::RankLine(*index.at(row.ranks.front()), slowest, strip)
                               : GroupLine(row, index, slowest, strip);
}

double Median(const Json& ranks) {
  std::vector<double> times;
  for (const Json& rank : ranks) {
    if (const double time = term::StepTime(rank); time == time) times.push_back(time);
  }
  return times.empty() ? std::nan("") : UpperMedian(std::move(times));
}

// Of a job that is compared with a plan: "  plan 1200 ms (+19 %)".
std::string PlanText(const Json& status) {
  const Json plan = status.value("plan", Json::object());
  if (plan.empty()) return "";
  std::string text = fmt::format("  plan {}", term::Known(1000 * term::Number(plan, "predicted_s"), "{:.0f} ms"));
  const double drift = term::Number(plan, "drift");
  if (std::isnan(drift)) return text;
  const char* colour = term::Word(plan, "verdict") == "slower" ? term::kRed : term::kGreen;
  return text + fmt::format(" {}({:+.0f} %){}", colour, 100 * drift, term::kPlain);
}

std::string SummaryLine(const Json& ranks, const ByNumber& index, const Look& look) {
  if (ranks.empty()) return "no rank runs now";
  Row all;
  for (const auto& [rank, status] : index) all.ranks.push_back(rank);
  return fmt::format("{}{} ranks: {}  step time {} median, {} longest",
                     look.within.empty() ? "" : look.within_name + ": ", ranks.size(), StatesText(all, index),
                     term::Known(1000 * Median(ranks), "{:.0f} ms"),
                     term::Known(1000 * term::Slowest(ranks), "{:.0f} ms"));
}

Json RanksWithin(const Json& status, const std::vector<int>& within) {
  Json ranks = status.value("ranks", Json::array());
  if (within.empty()) return ranks;
  const std::set<int> wanted(within.begin(), within.end());
  Json some = Json::array();
  for (const Json& rank : ranks) {
    if (wanted.contains(rank.value("rank", -1))) some.push_back(rank);
  }
  return some;
}

void AddNewestIncidents(const Body& body, size_t count) {
  const Json& incidents = body.known.incidents;
  for (size_t i = incidents.size() - count; i < incidents.size(); ++i)
    body.frame.lines.push_back(term::IncidentLine(incidents[i]));
}

void AddDetails(const Body& body, const Json& incident) {
  for (const Json& line : incident.value("evidence", Json::array()))
    body.frame.lines.push_back("      " + term::Clean(line.get<std::string>()));
  for (const Json& action : incident.value("actions", Json::array()))
    body.frame.lines.push_back(fmt::format("      {}{}: {}", action.value("done", true) ? "" : "would be ",
                                           term::Word(action, "kind"), term::Word(action, "text")));
}

}  // namespace

void AddRanks(Body body) {
  const Json ranks = RanksWithin(body.known.status, body.look.within);
  const ByNumber index = Index(ranks);
  body.frame.lines.push_back(SummaryLine(ranks, index, body.look) +
                             (body.look.within.empty() ? PlanText(body.known.status) : ""));
  const size_t incidents = std::min({body.known.incidents.size(), kIncidentsBelow, body.room / 3});
  const size_t room = body.room > incidents + 1 ? body.room - incidents - 1 : 1;
  const std::vector<Row> rows = Fold(ranks, body.known.folding, room);
  const double slowest = term::Slowest(ranks);
  body.frame.selectable = rows.size();
  const size_t selected = rows.empty() ? 0 : std::min(body.look.selected, rows.size() - 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string line = RowLine(rows[i], index, slowest, StripWidth(body.columns));
    body.frame.lines.push_back(Marked(line, i == selected));
    if (i == selected) body.frame.selected = rows[i];
  }
  AddNewestIncidents(body, incidents);
}

// The newest first; what the selected one rests on, below it.
void AddIncidents(Body body) {
  const Json& incidents = body.known.incidents;
  body.frame.lines.push_back(fmt::format("{} incidents, the newest first", incidents.size()));
  body.frame.selectable = incidents.size();
  if (incidents.empty()) return;
  const size_t selected = std::min(body.look.selected, incidents.size() - 1);
  const size_t skip = selected >= body.room / 2 ? selected - body.room / 2 : 0;
  for (size_t i = skip; i < incidents.size(); ++i) {
    const Json& incident = incidents[incidents.size() - 1 - i];
    body.frame.lines.push_back(Marked(term::IncidentLine(incident), i == selected));
    if (i == selected) AddDetails(body, incident);
  }
}

void AddStacks(Body body) {
  body.frame.lines.push_back(fmt::format("stacks of rank {}", body.look.stacks_of));
  std::istringstream text(body.look.stacks.empty() ? "reading them...\n" : body.look.stacks);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back("  " + term::Clean(line));
  const size_t seen = body.room - 1;
  body.frame.selectable = lines.size() > seen ? lines.size() - seen + 1 : 1;
  for (size_t i = std::min(body.look.scroll, body.frame.selectable - 1); i < lines.size(); ++i)
    body.frame.lines.push_back(lines[i]);
}

void AddHelp(Body body) {
  for (const char* line : kHelp) body.frame.lines.emplace_back(line);
}

}  // namespace lockstep::top
