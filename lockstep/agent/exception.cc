#include "lockstep/agent/exception.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string_view>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"

namespace lockstep::agent {
namespace {

constexpr off_t kErrorRoom = 16384;  // bytes; a note is of some 300

// The words of the communication layer: those that only gloo and NCCL use, and those that c10d has from the system, as
// others have.
constexpr std::array kOwnWords = {"gloo/transport/",
                                  "ncclRemoteError",
                                  "ncclSystemError",
                                  "NCCL communicator was aborted",
                                  "Watchdog caught collective operation timeout",
                                  "Application timeout caused pair closure"};
constexpr std::array kWords = {"Connection closed by peer",
                               "Connection reset by peer",
                               "Connection refused",
                               "Broken pipe",
                               "Socket closed",
                               "Socket Timeout",
                               "Timed out waiting",
                               "timed out waiting",
                               "Connect timeout",
                               "connection was aborted",
                               "Read error [127.0.0.1]"};

// Those of them that tell of somebody who did not come.
constexpr std::array kTimeouts = {"Timed out waiting",
                                  "timed out waiting",
                                  "Socket Timeout",
                                  "Connect timeout",
                                  "Watchdog caught collective operation timeout",
                                  "Application timeout caused pair closure"};

// What c10d raises them as.
constexpr std::array kCommunicationTypes = {
    "RuntimeError",         "DistBackendError", "DistNetworkError",      "DistError", "TimeoutError", "ConnectionError",
    "ConnectionResetError", "BrokenPipeError",  "ConnectionRefusedError"};

constexpr off_t kMaxErrorFile = 4 << 20;  // a message may hold a whole tensor
constexpr int kLongestChain = 20;         // of errors that one was raised for, as in _boot.py

// torch 1.13; torch 2 with libuv, and without.
constexpr std::array kPortTaken = {"Address already in use", "address already in use", "EADDRINUSE"};

template <size_t n>
bool IsOf(const std::array<const char*, n>& words, const std::string& text) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

template <size_t n>
bool Has(const std::array<const char*, n>& words, const std::string& text) {
  return std::any_of(words.begin(), words.end(), [&](const char* one) { return text.find(one) != std::string::npos; });
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// "torch.distributed.rendezvous" of .../dist-packages/torch/distributed/rendezvous.py, "train" of /home/me/train.py.
std::string ModuleOf(const std::string& folder, const std::string& file) {
  constexpr std::string_view kPackages = "-packages/";
  const size_t at = folder.rfind(kPackages);
  std::string module = (at == std::string::npos ? "" : folder.substr(at + kPackages.size())) + file;
  if (module.ends_with(".py")) module.resize(module.size() - 3);
  std::replace(module.begin(), module.end(), '/', '.');
  return module;
}

bool IsTorch(const std::string& module) { return module == "torch" || module.starts_with("torch."); }

struct Frames {
  std::string where;   // "train.py:41 in forward": the innermost one outside installed packages, else of all
  std::string module;  // of the innermost of all
};

// Of a traceback, whose lines are `  File "/home/me/train.py", line 41, in forward`.
Frames InnermostFrames(const std::string& traceback) {
  static const std::regex kFrame("File \"([^\"]*/)?([^\"/]+)\", line ([0-9]+), in (\\S+)");
  std::string own, any;
  Frames frames;
  std::istringstream lines(traceback);
  for (std::string line; std::getline(lines, line);) {
    std::smatch part;
    if (line.size() > 4096 || !std::regex_search(line, part, kFrame)) continue;
    any = fmt::format("{}:{} in {}", part[2].str(), part[3].str(), part[4].str());
    const std::string folder = part[1].str();
    const bool installed =
        folder.find("-packages/") != std::string::npos || folder.find("/lib/python") != std::string::npos;
    if (!installed) own = any;
    frames.module = ModuleOf(folder, part[2].str());
  }
  frames.where = own.empty() ? any : own;
  return frames;
}

// torch._utils raises again what a worker of a DataLoader raised.
bool MayBeTorchs(const std::string& raised_in) {
  return raised_in.empty() || (IsTorch(raised_in) && raised_in != "torch._utils");
}

bool HasWords(const std::string& message, const std::string& raised_in) {
  return Has(kOwnWords, message) || (MayBeTorchs(raised_in) && Has(kWords, message));
}

// Of other errors a traceback does not tell whether the frame raised them, or compiled code that it called.
bool IsLostPeer(const std::string& type, const std::string& text, const Frames& frames) {
  const bool known = IsTorch(frames.module) || text.find("[Errno ") != std::string::npos;
  return IsConnectionError(type, text, known ? frames.module : "");
}

// Of one error of a traceback: what it says behind the last frame and its line of code,
// "torch.distributed.DistBackendError: NCCL error in ...".
bool TellsOfLostPeer(const std::string& one) {
  size_t at = one.find('\n', one.rfind("  File \""));
  while (at != one.npos && one.compare(at + 1, 1, " ") == 0) at = one.find('\n', at + 1);
  const std::string text = at == one.npos ? "" : one.substr(at + 1);
  const std::string name = text.substr(0, text.find(':'));
  return IsLostPeer(name.substr(name.rfind('.') + 1), text, InnermostFrames(one));
}

struct Link {
  size_t at = 0;  // where the line begins that tells of an earlier error; 0: none does
  bool is_cause = false;
};

Link LastLink(std::string_view traceback) {
  constexpr std::string_view kCause = "The above exception was the direct cause of the following exception:";
  constexpr std::string_view kContext = "During handling of the above exception, another exception occurred:";
  for (size_t end = traceback.size(); end > 0;) {
    const size_t begin = traceback.rfind('\n', end - 1) + 1;
    if (begin == 0) break;
    const std::string_view line = traceback.substr(begin, end - begin);
    if (line == kCause || line == kContext) return {begin, line == kCause};
    end = begin - 1;
  }
  return {};
}

// One of those that the last error of a traceback was raised `from`, one for the other, tells of a lost peer.
bool IsRaisedFromLostPeer(const std::string& traceback) {
  std::string_view rest = traceback;
  Link link = LastLink(rest);
  for (int links = 0; link.is_cause && links < kLongestChain; ++links) {
    rest = rest.substr(0, link.at - 1);
    link = LastLink(rest);
    if (TellsOfLostPeer(std::string(rest.substr(link.at)))) return true;
  }
  return false;
}

// {"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": ...}}} of an exception, or {"message":
// "..."}, which other handlers write.
std::optional<ExceptionNote> NoteFromTorch(const Json& json) {
  const Json message = json.is_object() ? json.value("message", Json()) : Json();
  const Json& text = message.is_object() ? message.value("message", Json()) : message;
  if (!text.is_string()) return std::nullopt;
  const auto whole = text.get<std::string>();
  const size_t colon = FirstLine(whole).find(": ");
  ExceptionNote note;
  note.info.type = colon == std::string::npos ? "error" : whole.substr(0, colon);
  note.info.message = FirstLine(colon == std::string::npos ? whole : whole.substr(colon + 2));
  const Json extra = message.is_object() ? message.value("extraInfo", Json()) : Json();
  const Json stack = extra.is_object() ? extra.value("py_callstack", Json()) : Json();
  const auto traceback = stack.is_string() ? stack.get<std::string>() : "";
  const Frames frames = InnermostFrames(traceback);
  note.info.where = frames.where;
  note.info.connection = IsLostPeer(note.info.type, whole, frames) || IsRaisedFromLostPeer(traceback);
  note.info.timed_out = note.info.connection && (Has(kTimeouts, whole) || Has(kTimeouts, traceback));
  note.info.port_taken = IsPortTaken(note.info.type, whole);
  return note;
}

// What an exception was raised for, or while it was handled: [{"message": ..., "raised_in": ..., "retold": ...}].
struct Behind {
  bool lost_peer = false;
  bool retold = false;  // of which it tells, in whatever words
  bool timed_out = false;
};

Behind BehindIt(const Json& earlier) {
  Behind behind;
  for (const Json& one : earlier) {
    const std::string message = one.is_object() ? one.value("message", "") : "";
    if (!one.is_object() || !HasWords(message, one.value("raised_in", ""))) continue;
    behind.lost_peer = true;
    behind.timed_out = behind.timed_out || Has(kTimeouts, message);
    behind.retold = behind.retold || one.value("retold", false);
  }
  return behind;
}

Json JsonIn(const std::string& path) {
  const auto text = ReadFile(path);
  return text.ok() ? ParseJson(*text) : Json();
}

std::optional<ExceptionNote> NoteFrom(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  ExceptionNote note;
  note.at = Nanos{json.value("at_ns", int64_t{0})};
  note.info.type = json.value("type", "");
  const std::string message = json.value("message", "");
  note.info.message = FirstLine(message);
  note.info.where = json.value("where", "");
  // A program may tell a loss that it heard of torch in words of its own. A connection that it lost while it handled
  // one has the same cause; another fault that it met then may have one of its own.
  const Behind behind = BehindIt(json.value("earlier", Json::array()));
  const std::string raised_in = behind.lost_peer ? "" : json.value("raised_in", "");
  note.info.connection = behind.retold || IsConnectionError(note.info.type, message, raised_in);
  note.info.after_loss = behind.lost_peer && !note.info.connection;
  note.info.timed_out = note.info.connection && (Has(kTimeouts, message) || behind.timed_out);
  note.info.port_taken = IsPortTaken(note.info.type, message);
  return note;
}

}  // namespace

bool IsConnectionError(const std::string& type, const std::string& message, const std::string& raised_in) {
  return IsOf(kCommunicationTypes, type) && HasWords(message, raised_in);
}

bool IsPortTaken(const std::string& type, const std::string& message) {
  return IsOf(kCommunicationTypes, type) && message.find("server socket has failed to listen") != std::string::npos &&
         Has(kPortTaken, message);
}

std::optional<ExceptionNote> ReadException(const std::string& path) { return NoteFrom(JsonIn(path)); }

std::string ErrorRoomPath(const std::string& run_dir, int rank) {
  return fmt::format("{}/room/rank_{}.error.json", run_dir, rank);
}

absl::Status MakeErrorRoom(const std::string& path) {
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return Errno(errno, "{}", path);
  const int error = posix_fallocate(file.get(), 0, kErrorRoom);
  return error == 0 ? absl::OkStatus() : Errno(error, "{}", path);
}

std::optional<ExceptionNote> ReadErrorRoom(const std::string& path, uint64_t epoch) {
  const Json json = JsonIn(path);
  return json.is_object() && json.value("epoch", uint64_t{0}) == epoch ? NoteFrom(json) : std::nullopt;
}

absl::StatusOr<ExceptionNote> ReadTorchError(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return Errno(errno, "{}", path);
  if (!S_ISREG(info.st_mode)) return DataLoss("{} is not a file", path);
  if (info.st_size > kMaxErrorFile) {
    return DataLoss("{} has {} bytes, more than an error file of at most {} bytes may", path, info.st_size,
                    kMaxErrorFile);
  }
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::optional<ExceptionNote> note = NoteFromTorch(ParseJson(text));
  if (!note) return DataLoss("{} is damaged: no JSON object with a \"message\"", path);
  return *note;
}

}  // namespace lockstep::agent
