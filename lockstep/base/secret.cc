#include "lockstep/base/secret.h"

#include "lockstep/base/file.h"

namespace lockstep {

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  constexpr char kSpace[] = " \t\r\n";
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos)
    return InvalidArgument("--token-file {} is empty: put a secret into it, or leave the flag out", path);
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

bool SameSecret(std::string_view given, std::string_view wanted) {
  unsigned differs = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size() && !wanted.empty(); ++i) {
    differs |= static_cast<unsigned>(given[i]) ^ static_cast<unsigned>(wanted[i % wanted.size()]);
  }
  return differs == 0;
}

}  // namespace lockstep
