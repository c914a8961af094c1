#include "lockstep/top/keys.h"

#include <algorithm>
#include <array>
#include <optional>

namespace lockstep::top {
namespace {

struct Meaning {
  std::string_view bytes;
  Key key;
};
// Longer ones before their beginnings. Cursor keys come as CSI or, in application mode, as SS3.
constexpr std::array<Meaning, 26> kMeanings = {{
    {"\033[5~", Key::kPageUp}, {"\033[6~", Key::kPageDown}, {"\033[A", Key::kUp},   {"\033OA", Key::kUp},
    {"\033[B", Key::kDown},    {"\033OB", Key::kDown},      {"\033[C", Key::kOpen}, {"\033OC", Key::kOpen},
    {"\033[D", Key::kBack},    {"\033OD", Key::kBack},      {"\033", Key::kBack},   {"k", Key::kUp},
    {"j", Key::kDown},         {"\r", Key::kOpen},          {"\n", Key::kOpen},     {"l", Key::kOpen},
    {"h", Key::kBack},         {"\x7f", Key::kBack},        {"i", Key::kIncidents}, {"g", Key::kFold},
    {" ", Key::kPageDown},     {"b", Key::kPageUp},         {"?", Key::kHelp},      {"q", Key::kQuit},
    {"Q", Key::kQuit},         {"\x04", Key::kQuit},
}};

// The parameters and the end of a control sequence that means nothing to us.
size_t UnknownSequence(std::string_view bytes) {
  size_t at = 2;
  while (at < bytes.size() && (bytes[at] < 0x40 || bytes[at] > 0x7E)) ++at;
  return at + 1;
}

}  // namespace

std::vector<Key> KeysIn(std::string_view bytes) {
  std::vector<Key> keys;
  while (!bytes.empty()) {
    size_t length = 1;
    std::optional<Key> key;
    for (const Meaning& meaning : kMeanings) {
      if (!bytes.starts_with(meaning.bytes)) continue;
      length = meaning.bytes.size();
      key = meaning.key;
      break;
    }
    const bool unknown = bytes.starts_with("\033[") && length == 1;
    if (unknown) length = UnknownSequence(bytes);
    if (key && !unknown) keys.push_back(*key);
    bytes.remove_prefix(std::min(length, bytes.size()));
  }
  return keys;
}

}  // namespace lockstep::top
