// Which Python runs the script: --python, else $PYTHON_EXEC, else the active virtual environment, else python3 on PATH.
//
//   LS_ASSIGN_OR_RETURN(PythonChoice python, FindPython(flag));
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::agent {

struct PythonChoice {
  std::string path;  // absolute
  std::string from;  // "--python", "$PYTHON_EXEC", "$VIRTUAL_ENV", "PATH"
};

// The absolute path of an executable file, sought as execvp does.
std::optional<std::string> FindProgram(const std::string& name);

// `flag` empty: not given. Errors name every place that was tried.
absl::StatusOr<PythonChoice> FindPython(const std::string& flag);

}  // namespace lockstep::agent
