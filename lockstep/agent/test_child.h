// A child process for tests of proc and stacks. It says a line on its standard output when it is where it should be; it
// dies with its owner.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"

namespace lockstep::agent {

class TestChild {
 public:
  explicit TestChild(std::vector<std::string> arguments) {
    std::array<int, 2> ends;
    LS_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
    output_ = Fd(ends[0]);
    const Fd write_end(ends[1]);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(write_end.get(), STDOUT_FILENO);
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }
  TestChild(const TestChild&) = delete;
  TestChild& operator=(const TestChild&) = delete;
  ~TestChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  // The child's next line, without its end; "" when it is gone.
  std::string Line() {
    std::string line;
    for (char letter = 0; read(output_.get(), &letter, 1) == 1 && letter != '\n';) line += letter;
    return line;
  }
  // All it writes until it is gone.
  std::string Rest() {
    std::string text;
    for (char letter = 0; read(output_.get(), &letter, 1) == 1;) text += letter;
    return text;
  }
  void Stop() {
    kill(pid_, SIGSTOP);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT);
  }
  void Continue() { kill(pid_, SIGCONT); }
  // Exit status, or -1 if a signal ended it.
  int Wait() {
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
  Fd output_;
};

}  // namespace lockstep::agent
