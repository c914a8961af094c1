#include "lockstep/cli/checks.h"

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/report.h"

namespace lockstep::cli {
namespace {

CLI::Validator Number(const std::string& expected, std::function<bool(double)> fits) {
  return CLI::Validator(
      [expected, fits = std::move(fits)](const std::string& text) {
        double value = 0;
        const bool is_one = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && fits(value);
        return is_one ? "" : fmt::format("expected {}, found {}", expected, text);
      },
      expected);
}

}  // namespace

CLI::Validator AboveZero() {
  return Number("a number above 0", [](double value) { return value > 0; });
}
CLI::Validator NotBelowZero() {
  return Number("a number from 0", [](double value) { return value >= 0; });
}
CLI::Validator AnyWholeNumber() {
  return CLI::Validator(
      [](const std::string& text) {
        int64_t number = 0;
        uint64_t large = 0;
        const bool is_one = CLI::detail::lexical_cast(text, number) || CLI::detail::lexical_cast(text, large);
        return is_one ? "" : fmt::format("expected a whole number, found {}", text);
      },
      "");
}
CLI::Validator Between(double least, double most) {
  return Number(fmt::format("{:.15g} to {:.15g}", least, most),
                [=](double value) { return least <= value && value <= most; });
}
CLI::Validator Size() {
  return CLI::Validator(
      [](std::string& text) {
        const CLI::AsSizeValue to_bytes(false);
        const std::string found = text;
        const bool is_size = !text.empty() && text.find('-') == std::string::npos && to_bytes(text).empty();
        return is_size ? "" : fmt::format("expected a size, such as 8G or 512M, found {}", found);
      },
      "SIZE");
}
CLI::Validator NotEmpty() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "it is empty" : ""; }, "");
}

absl::StatusOr<std::string> WorkingDirectory() {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  if (error) return NotFound("the working directory: {}; change to one that is there", error.message());
  return here.string();
}

absl::Status CheckText(const std::string& what, const std::string& text) {
  const auto quoted = [&](Json::error_handler_t handler) { return Json(text).dump(-1, ' ', false, handler); };
  if (quoted(Json::error_handler_t::ignore) == quoted(Json::error_handler_t::replace)) return absl::OkStatus();
  return InvalidArgument(
      "{} {} is no UTF-8, in which a run keeps it; rename it, or give it another way, such as in a file", what,
      quoted(Json::error_handler_t::replace));
}
absl::Status CheckTexts(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    for (const std::string& text : option->results()) LS_RETURN_IF_ERROR(CheckText(option->get_name(), text));
  return absl::OkStatus();
}

}  // namespace lockstep::cli
