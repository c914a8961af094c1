#include "lockstep/explain/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/heatmap.h"

namespace lockstep::explain {
namespace {

constexpr char kStyle[] = R"(
body { font: 14px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 1040px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin-top: 2em; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 3px 14px 3px 0; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid #eee; } .verdict { font-size: 16px; } .note { color: #666; } .bar { background: #e6a08f; height: 11px; }
svg { max-width: 100%; height: auto; }
)";

std::string Cell(const char* tag, bool number, const std::string& text) {
  return fmt::format("<{0}{1}>{2}</{0}>", tag, number ? " class=\"number\"" : "", Escaped(text));
}

std::string TextOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{:.3f}", value.get<double>()) : OneLine(value);
}

}  // namespace

std::string HtmlBegin(const std::string& title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{1}</style></head>\n"
      "<body><h1>{0}</h1>\n",
      Escaped(title), kStyle);
}

std::string BarCell(double part) {
  constexpr double kWidest = 260;  // px
  return fmt::format("<td><div class=\"bar\" style=\"width:{:.0f}px\"></div></td>",
                     kWidest * std::clamp(part, 0.0, 1.0));
}

std::string HtmlTable(const Json& rows, const std::string& bar) {
  constexpr size_t kMost = 32;
  if (rows.empty()) return "<p class=\"note\">None.</p>\n";
  double largest = 0;
  for (const Json& row : rows)
    if (!bar.empty()) largest = std::max(largest, row.at(bar).get<double>());
  std::string html = "<table><tr>";
  for (const auto& [key, value] : rows.front().items()) {
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    html += Cell("th", value.is_number(), words);
  }
  html += "</tr>\n";
  size_t shown = 0;
  for (const Json& row : rows) {
    if (shown++ == kMost) break;
    html += "<tr>";
    for (const auto& [key, value] : row.items()) html += Cell("td", value.is_number(), TextOf(value));
    if (largest > 0) html += BarCell(row.at(bar).get<double>() / largest);
    html += "</tr>\n";
  }
  if (rows.size() > kMost) html += fmt::format("<tr><td class=\"note\">and {} more</td></tr>", rows.size() - kMost);
  return html + "</table>\n";
}

}  // namespace lockstep::explain
