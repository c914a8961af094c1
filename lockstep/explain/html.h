// What the pages of `lockstep explain --out` have in common: one style, nothing from elsewhere.
#pragma once

#include <string>

#include "lockstep/base/report.h"

namespace lockstep::explain {

// Up to and with the headline of the body.
std::string HtmlBegin(const std::string& title);
inline constexpr char kHtmlEnd[] = "</body></html>\n";

// A bar as a cell of a table, `part` of the widest.
std::string BarCell(double part);

// Rows of flat objects with the same keys, which head the columns; numbers stand right. After each row a bar of the
// value of `bar`, the largest as wide as a bar can be; empty: none. Of many rows the first 32.
std::string HtmlTable(const Json& rows, const std::string& bar = "");

}  // namespace lockstep::explain
