// Bytes from a terminal as keys. Pure.
#pragma once

#include <string_view>
#include <vector>

namespace lockstep::top {

enum class Key { kUp, kDown, kOpen, kBack, kIncidents, kFold, kPageDown, kPageUp, kHelp, kQuit };

// What was read at once. An escape sequence is whole or is taken for the Escape key: terminals send it in one piece,
// and where a slow line tears one, the worst is a step back.
std::vector<Key> KeysIn(std::string_view bytes);

}  // namespace lockstep::top
