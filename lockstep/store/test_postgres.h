// Test support: a PostgreSQL server of the test's own, from Debian's package, in a folder that goes with it. It listens
// on a socket there and nowhere else. It refuses to run as root, and runs as nobody then.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/store/postgres_session.h"

namespace lockstep::store {

class TestPostgres {
 public:
  // nullptr: there is no PostgreSQL on this machine.
  static std::unique_ptr<TestPostgres> Make() {
    const std::string programs = Programs();
    if (programs.empty()) return nullptr;
    std::unique_ptr<TestPostgres> server(new TestPostgres(programs));
    server->Start();
    return server;
  }
  ~TestPostgres() { Kill(); }

  // Also after Kill().
  void Start() {
    while (true) {
      server_ =
          Run({programs_ + "/postgres", "-D", folder_ / "data", "-k", folder_.path(), "-c", "listen_addresses=", "-c",
               "fsync=off", "-c", "dynamic_shared_memory_type=mmap", "-c", "max_connections=40"});
      while (waitpid(server_, nullptr, WNOHANG) == 0) {
        if (PostgresSession::Open(url(), "the test", Seconds{5}).ok()) return;
        usleep(10'000);
      }
      usleep(10'000);  // processes of one that was killed were still there
    }
  }
  // What its log had not yet written to the file is lost, as when the machine loses power.
  void Kill() {
    if (server_ > 0) kill(server_, SIGKILL), waitpid(server_, nullptr, 0);
    server_ = -1;
  }
  std::string url() const { return "postgresql:///postgres?user=postgres&host=" + folder_.path(); }

 private:
  explicit TestPostgres(std::string programs) : programs_(std::move(programs)) {
    if (geteuid() == 0 && chown(folder_.path().c_str(), kNobody, kNobody) != 0) abort();
    const pid_t made = Run({programs_ + "/initdb", "-D", folder_ / "data", "-U", "postgres", "-A", "trust", "-E",
                            "UTF8", "--locale=C", "--no-sync"});
    waitpid(made, nullptr, 0);
  }

  static std::string Programs() {
    std::error_code error;
    for (const auto& version : std::filesystem::directory_iterator("/usr/lib/postgresql", error))
      if (std::filesystem::exists(version.path() / "bin/initdb")) return version.path() / "bin";
    return "";
  }

  pid_t Run(const std::vector<std::string>& command) const {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(log, 1);
    dup2(log, 2);
    if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(1);
    if (chdir(folder_.path().c_str()) != 0) _exit(1);
    execv(words[0], words.data());
    _exit(127);
  }

  static constexpr uid_t kNobody = 65534;
  const std::string programs_;
  const TestFolder folder_;
  pid_t server_ = -1;
};

}  // namespace lockstep::store
