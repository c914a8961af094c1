// What an option takes. CLI11's own checks of numbers let nan through, and print bounds of 309 digits.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::cli {

CLI::Validator AboveZero();
CLI::Validator NotBelowZero();
CLI::Validator AnyWholeNumber();
CLI::Validator Between(double least, double most);  // both included
CLI::Validator Size();      // of memory: turns "8G" into bytes; CLI11's own makes 2^64 - 5 of -5
CLI::Validator NotEmpty();  // for what names something: an empty variable of a shell is no name

// Where the command was given. An error says that it is gone.
absl::StatusOr<std::string> WorkingDirectory();

// A run keeps what it is given in JSON, which takes nothing but UTF-8. `what`: a name for the text.
absl::Status CheckText(const std::string& what, const std::string& text);
// All that the command's options were given.
absl::Status CheckTexts(const CLI::App& command);

}  // namespace lockstep::cli
