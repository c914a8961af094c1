#include "lockstep/remote/xml.h"

#include <algorithm>
#include <utility>

namespace lockstep::remote {
namespace {

constexpr std::pair<std::string_view, char> kEntities[] = {
    {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&#34;", '"'}, {"&#39;", '\''}};

std::string Undo(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const auto* entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                                      [&](const auto& known) { return text.starts_with(known.first); });
    const bool is_one = entity != std::end(kEntities);
    plain += is_one ? entity->second : text.front();
    text.remove_prefix(is_one ? entity->first.size() : 1);
  }
  return plain;
}

}  // namespace

std::vector<std::string> XmlElements(std::string_view xml, const std::string& name) {
  std::vector<std::string> found;
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  for (size_t at = xml.find(open); at != std::string_view::npos; at = xml.find(open, at)) {
    at += open.size();
    const size_t end = xml.find(close, at);
    if (end == std::string_view::npos) break;
    found.emplace_back(xml.substr(at, end - at));
    at = end;
  }
  return found;
}

std::vector<std::string> XmlTexts(std::string_view xml, const std::string& name) {
  std::vector<std::string> texts = XmlElements(xml, name);
  for (std::string& text : texts) text = Undo(text);
  return texts;
}

std::string XmlText(std::string_view xml, const std::string& name) {
  const std::vector<std::string> texts = XmlTexts(xml, name);
  return texts.empty() ? "" : texts.front();
}

}  // namespace lockstep::remote
