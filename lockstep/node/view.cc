#include "lockstep/node/view.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/clean.h"
#include "lockstep/base/status.h"
#include "lockstep/term/lines.h"
#include "lockstep/term/text.h"

namespace lockstep::node {
namespace {

constexpr size_t kMaxRanksShown = 16;
constexpr size_t kMaxIncidentsShown = 4;
constexpr int kStripWidth = 24;

size_t TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::vector<std::string> Lines(const Json& status, const Json& incidents) {
  std::vector<std::string> lines = {term::HeadLine(status)};
  const Json ranks = status.value("ranks", Json::array());
  const double slowest = term::Slowest(ranks);
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanksShown); ++i)
    lines.push_back(term::RankLine(ranks[i], slowest, kStripWidth));
  if (ranks.size() > kMaxRanksShown) lines.push_back(fmt::format("  and {} ranks more", ranks.size() - kMaxRanksShown));
  const size_t skip = incidents.size() > kMaxIncidentsShown ? incidents.size() - kMaxIncidentsShown : 0;
  for (size_t i = skip; i < incidents.size(); ++i) lines.push_back(term::IncidentLine(incidents[i]));
  return lines;
}

}  // namespace

View::View(bool live) : outlet_(STDOUT_FILENO, STDERR_FILENO), live_(live && isatty(STDERR_FILENO) == 1) {}

View::~View() {
  if (live_ && output_mid_line_) outlet_.Write(STDERR_FILENO, "\n");
}

void View::Erase() {
  if (painted_lines_ > 0) outlet_.Write(STDERR_FILENO, fmt::format("\033[{}F\033[J", painted_lines_));
  painted_lines_ = 0;
}

void View::Output(int stream, std::string_view data) {
  Erase();
  outlet_.Write(stream == 2 ? STDERR_FILENO : STDOUT_FILENO, data);
  if (!data.empty() && (stream == 2 || outlet_.is_one_file())) output_mid_line_ = data.back() != '\n';
  last_.clear();
}

void View::Line(const std::string& text) {
  Erase();
  const char* begin = std::exchange(output_mid_line_, false) ? "\n" : "";
  outlet_.Write(STDERR_FILENO, begin + ("lockstep: " + CleanLines(text)) + "\n");
  last_.clear();
}

void View::Paint(const Json& status, const Json& incidents) {
  if (!live_ || output_mid_line_ || outlet_.IsBehind(STDERR_FILENO)) return;
  const size_t width = TerminalWidth();
  std::string text;
  const std::vector<std::string> lines = Lines(status, incidents);
  for (const std::string& line : lines) text += term::Fit(line, width) + "\033[K\n";
  if (text == last_) return;
  // Overwrites in place: no blank frame between, no flicker.
  const std::string up = painted_lines_ > 0 ? fmt::format("\033[{}F", painted_lines_) : "";
  outlet_.Write(STDERR_FILENO, up + text + "\033[J");
  painted_lines_ = static_cast<int>(lines.size());
  last_ = text;
}

}  // namespace lockstep::node
