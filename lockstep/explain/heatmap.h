// A heatmap of slowdowns as SVG: white at 1, dark red from 1.5 on.
#pragma once

#include <string>
#include <vector>

namespace lockstep::explain {

struct Heatmap {
  std::string title, x_axis, y_axis;
  std::vector<std::string> columns, rows;
  std::vector<double> values;  // [row * columns + column]; NaN: nothing there
};

// Requires as many values as rows times columns.
std::string HeatmapSvg(const Heatmap& map);

// Values over steps, as a line.
struct LineChart {
  std::string title, x_axis, y_axis;
  std::vector<std::string> labels;  // of x
  std::vector<double> values;
};
std::string LineChartSvg(const LineChart& chart);

// Text in XML.
std::string Escaped(const std::string& text);

}  // namespace lockstep::explain
