#include "lockstep/explain/heatmap.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::explain {
namespace {

constexpr double kLow = 1, kHigh = 1.5;                    // ends of the colours
constexpr double kWidth = 960, kLeft = 56, kTop = 40;      // px
constexpr double kWidest = 40, kTallest = 26, kLeast = 4;  // of a cell
constexpr double kLabelled = 30;                           // a cell of this width has its value in it
constexpr double kLabelHeight = 12, kLabelWidth = 34;
constexpr double kLegend = 50;
constexpr size_t kMostTitles = 20000;  // cells with a text under the mouse

using Colour = std::array<double, 3>;
constexpr std::array<Colour, 4> kColours = {{{255, 250, 247}, {252, 174, 145}, {222, 45, 38}, {84, 0, 12}}};

double Place(double slowdown) { return std::clamp((slowdown - kLow) / (kHigh - kLow), 0.0, 1.0); }

std::string ColourAt(double place) {
  const double scaled = place * static_cast<double>(kColours.size() - 1);
  const size_t below = std::min(static_cast<size_t>(scaled), kColours.size() - 2);
  const double part = scaled - static_cast<double>(below);
  std::array<int, 3> rgb{};
  for (size_t i = 0; i < rgb.size(); ++i)
    rgb[i] = static_cast<int>(std::lround(kColours[below][i] * (1 - part) + kColours[below + 1][i] * part));
  return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]);
}

std::string Open(double width, double height, const std::string& title) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
      R"(font-family="system-ui, sans-serif" font-size="11" fill="#222">)"
      "\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      R"(<text x="{2}" y="20" font-size="14" font-weight="600">{3}</text>)"
      "\n",
      width, height, kLeft, Escaped(title));
}

std::string Label(double x, double y, const std::string& text, const char* anchor = "middle",
                  const char* colour = "#222") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y, anchor, colour,
                     Escaped(text));
}

// Every n-th label, so that they don't run into each other.
size_t LabelStride(double pitch, double room) {
  return std::max<size_t>(1, static_cast<size_t>(std::ceil(room / pitch)));
}

std::string Legend(double x, double y) {
  constexpr int kSteps = 50;
  constexpr double kStep = 4, kHeight = 10;
  std::string svg;
  for (int i = 0; i < kSteps; ++i)
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n", x + i * kStep,
                       y, kStep + 0.5, kHeight, ColourAt(static_cast<double>(i) / (kSteps - 1)));
  for (const double value : {1.0, 1.1, 1.2, 1.3, 1.4, 1.5})
    svg += Label(x + Place(value) * kSteps * kStep, y + kHeight + kLabelHeight,
                 fmt::format("{:.1f}{}", value, value == kHigh ? "+" : ""));
  return svg;
}

}  // namespace

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string HeatmapSvg(const Heatmap& map) {
  const size_t columns = map.columns.size(), rows = map.rows.size();
  const double width =
      std::clamp((kWidth - kLeft) / static_cast<double>(std::max<size_t>(columns, 1)), kLeast, kWidest);
  const double height = rows > 64 ? kLeast * 2 : kTallest;
  const double right = kLeft + width * static_cast<double>(columns), bottom = kTop + height * static_cast<double>(rows);
  std::string svg = Open(std::max(right + kLabelWidth, kWidth / 2), bottom + 2 * kLabelHeight + kLegend, map.title);
  for (size_t row = 0; row < rows; ++row)
    for (size_t column = 0; column < columns; ++column) {
      const double value = map.values[row * columns + column];
      if (std::isnan(value)) continue;
      const double x = kLeft + width * static_cast<double>(column), y = kTop + height * static_cast<double>(row);
      std::string title;
      if (rows * columns <= kMostTitles)
        title = fmt::format("<title>{} {}, {} {}: {:.3f}</title>", Escaped(map.x_axis), Escaped(map.columns[column]),
                            Escaped(map.y_axis), Escaped(map.rows[row]), value);
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"#fff\" "
          "stroke-width=\"0.5\">{}</rect>\n",
          x, y, width, height, ColourAt(Place(value)), title);
      if (width >= kLabelled && height >= kLabelHeight)
        svg += Label(x + width / 2, y + height / 2 + 4, fmt::format("{:.2f}", value), "middle",
                     Place(value) > 0.5 ? "#fff" : "#222");
    }
  const size_t x_stride = LabelStride(width, kLabelWidth), y_stride = LabelStride(height, kLabelHeight);
  for (size_t column = 0; column < columns; column += x_stride)
    svg += Label(kLeft + width * (static_cast<double>(column) + 0.5), bottom + kLabelHeight, map.columns[column]);
  for (size_t row = 0; row < rows; row += y_stride)
    svg += Label(kLeft - 4, kTop + height * (static_cast<double>(row) + 0.5) + 4, map.rows[row], "end");
  svg += Label(kLeft + width * static_cast<double>(columns) / 2, bottom + 2 * kLabelHeight + 2, map.x_axis);
  svg += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + bottom) / 2, Escaped(map.y_axis));
  return svg + Legend(kLeft, bottom + 2 * kLabelHeight + 12) + "</svg>\n";
}

std::string LineChartSvg(const LineChart& chart) {
  constexpr double kHeight = 180, kRight = 20;
  constexpr int kLines = 4;
  const size_t count = chart.values.size();
  std::string svg = Open(kWidth, kTop + kHeight + 3 * kLabelHeight, chart.title);
  if (count == 0) return svg + "</svg>\n";
  const double highest = std::max(*std::max_element(chart.values.begin(), chart.values.end()) * 1.05, 1.1);
  const double lowest = std::min(*std::min_element(chart.values.begin(), chart.values.end()), 1.0);
  const auto y_of = [&](double value) { return kTop + kHeight * (1 - (value - lowest) / (highest - lowest)); };
  const double pitch = (kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(count - 1, 1));
  for (int i = 0; i <= kLines; ++i) {
    const double value = lowest + (highest - lowest) * i / kLines;
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft,
                       kWidth - kRight, y_of(value), y_of(value));
    svg += Label(kLeft - 4, y_of(value) + 4, fmt::format("{:.2f}", value), "end");
  }
  std::string points;
  for (size_t i = 0; i < count; ++i)
    points += fmt::format("{:.1f},{:.1f} ", kLeft + pitch * static_cast<double>(i), y_of(chart.values[i]));
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#b2182b\" stroke-width=\"1.5\"/>\n", points);
  for (size_t i = 0; i < count; i += LabelStride(pitch, kLabelWidth))
    svg += Label(kLeft + pitch * static_cast<double>(i), kTop + kHeight + kLabelHeight + 2, chart.labels[i]);
  svg += Label((kLeft + kWidth - kRight) / 2, kTop + kHeight + 2 * kLabelHeight + 4, chart.x_axis);
  svg += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     kTop + kHeight / 2, Escaped(chart.y_axis));
  return svg + "</svg>\n";
}

}  // namespace lockstep::explain
