#include "lockstep/agent/python.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <vector>

namespace lockstep::agent {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool IsProgram(const std::string& path) {
  return access(path.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(path);
}

}  // namespace

// As execvp looks: a name with a slash is a path, others are sought along PATH.
std::optional<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (!IsProgram(name)) return std::nullopt;
    return std::filesystem::absolute(name).string();
  }
  std::istringstream path(Variable("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (IsProgram(candidate)) return std::filesystem::absolute(candidate).string();
  }
  return std::nullopt;
}

absl::StatusOr<PythonChoice> FindPython(const std::string& flag) {
  struct Candidate {
    std::string from, name;
    bool only;  // asked for by name: no falling through to the next
  };
  const std::string venv = Variable("VIRTUAL_ENV");
  const std::vector<Candidate> candidates = {{"--python", flag, true},
                                             {"$PYTHON_EXEC", Variable("PYTHON_EXEC"), true},
                                             {"$VIRTUAL_ENV", venv.empty() ? "" : venv + "/bin/python3", false},
                                             {"PATH", "python3", false}};
  std::string tried;
  for (const Candidate& candidate : candidates) {
    if (candidate.name.empty()) continue;
    if (auto path = FindProgram(candidate.name)) return PythonChoice{*path, candidate.from};
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", candidate.name, candidate.from);
    if (candidate.only) break;
  }
  return NotFound("no Python to run the script with; tried {}. Name one with --python PATH", tried);
}

}  // namespace lockstep::agent
