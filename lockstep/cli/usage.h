// The usage line of a command whose script and arguments CLI11 does not know of, for it leaves them to the script.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

namespace lockstep::cli {

class UsageWithScript final : public CLI::Formatter {
 public:
  explicit UsageWithScript(std::string script) : script_(std::move(script)) {}
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    usage.insert(usage.find_last_not_of('\n') + 1, " " + script_);
    return usage;
  }

 private:
  std::string script_;
};

}  // namespace lockstep::cli
