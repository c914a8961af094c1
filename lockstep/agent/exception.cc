#include "lockstep/agent/exception.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

// Only errors that the communication layer itself raises: the words of gloo, c10d and NCCL.
constexpr std::array kLostPeer = {"Connection closed by peer",
                                  "Connection reset by peer",
                                  "Connection refused",
                                  "Broken pipe",
                                  "Socket closed",
                                  "Socket Timeout",
                                  "Timed out waiting",
                                  "timed out waiting",
                                  "Connect timeout",
                                  "ncclRemoteError",
                                  "ncclSystemError",
                                  "NCCL communicator was aborted",
                                  "connection was aborted",
                                  "Application timeout caused pair closure",
                                  "Read error [127.0.0.1]"};

}  // namespace

bool IsConnectionError(const std::string& type, const std::string& message) {
  static constexpr std::array kTypes = {
      "RuntimeError",          "DistBackendError", "DistNetworkError",     "DistError",
      "TimeoutError",          "ConnectionError",  "ConnectionResetError", "BrokenPipeError",
      "ConnectionRefusedError"};
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) return false;
  return std::any_of(kLostPeer.begin(), kLostPeer.end(),
                     [&](const char* words) { return message.find(words) != std::string::npos; });
}

std::optional<ExceptionNote> ReadException(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  const Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  ExceptionNote note;
  note.at = Nanos{json.value("at_ns", int64_t{0})};
  note.info.type = json.value("type", "");
  const std::string message = json.value("message", "");
  note.info.message = message.substr(0, message.find('\n'));
  note.info.where = json.value("where", "");
  note.info.connection = IsConnectionError(note.info.type, message);
  return note;
}

}  // namespace lockstep::agent
