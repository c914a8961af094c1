#include "lockstep/top/frame.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/term/lines.h"
#include "lockstep/term/text.h"
#include "lockstep/top/body.h"

namespace lockstep::top {
namespace {

constexpr size_t kAround = 2;  // headline and foot

std::string FootLine(const Known& known, const Look& look) {
  if (!known.trouble.empty()) return std::string(term::kRed) + term::Clean(known.trouble) + term::kPlain;
  if (look.screen == Screen::kRanks && look.within.empty())
    return std::string(term::kDim) + "q quit  enter open  i incidents  g by " + known.folding.name + "  ? help" +
           term::kPlain;
  return std::string(term::kDim) + "q quit  esc back  ? help" + term::kPlain;
}

void AddBody(const Body& body) {
  switch (body.look.screen) {
    case Screen::kRanks:
      return AddRanks(body);
    case Screen::kIncidents:
      return AddIncidents(body);
    case Screen::kStacks:
      return AddStacks(body);
    case Screen::kHelp:
      return AddHelp(body);
  }
}

}  // namespace

Frame MakeFrame(const Known& known, Size size, const Look& look) {
  const size_t rows = std::max<size_t>(size.rows, kAround + 2);
  Frame frame;
  frame.lines.push_back(term::HeadLine(known.status));
  AddBody({known, look, rows - kAround, size.columns, frame});
  frame.lines.resize(rows - 1);
  frame.lines.push_back(FootLine(known, look));
  frame.lines.resize(size.rows);
  for (std::string& line : frame.lines) line = term::Fit(line, size.columns);
  return frame;
}

}  // namespace lockstep::top
