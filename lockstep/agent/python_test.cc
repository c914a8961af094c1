#include "lockstep/agent/python.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep::agent {
namespace {

class FindPythonTest : public testing::Test {
 protected:
  FindPythonTest() {
    unsetenv("PYTHON_EXEC");
    unsetenv("VIRTUAL_ENV");
    setenv("PATH", "/usr/bin:/bin", 1);
  }
};

TEST_F(FindPythonTest, TheFlagWinsThenTheVariableThenPath) {
  setenv("PYTHON_EXEC", "/bin/true", 1);
  EXPECT_EQ(FindPython("/bin/false")->path, "/bin/false");
  EXPECT_EQ(FindPython("/bin/false")->from, "--python");
  EXPECT_EQ(FindPython("")->path, "/bin/true");
  unsetenv("PYTHON_EXEC");
  EXPECT_EQ(FindPython("")->path, "/usr/bin/python3");
  EXPECT_EQ(FindPython("")->from, "PATH");
}

TEST_F(FindPythonTest, ABrokenVenvFallsThroughABrokenFlagDoesNot) {
  setenv("VIRTUAL_ENV", "/no/venv", 1);
  EXPECT_EQ(FindPython("")->from, "PATH");
  EXPECT_EQ(Message(FindPython("/no/python").status()),
            "no Python to run the script with; tried /no/python (--python). Name one with --python PATH");
}

TEST_F(FindPythonTest, TheErrorNamesAllThatWasTried) {
  setenv("VIRTUAL_ENV", "/no/venv", 1);
  setenv("PATH", "/nowhere", 1);
  EXPECT_EQ(Message(FindPython("").status()),
            "no Python to run the script with; tried /no/venv/bin/python3 ($VIRTUAL_ENV), python3 (PATH). Name one "
            "with --python PATH");
}

}  // namespace
}  // namespace lockstep::agent
