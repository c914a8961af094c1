// What a client needs of S3's answers: the texts of elements of a name. No attributes, no comments; namespaces in a tag
// are passed over. Pure, and safe for any input.
//
//   XmlTexts("<R><Key>a&amp;b</Key></R>", "Key")   // {"a&b"}
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::remote {

// As they stand between <name> and </name>, elements inside not undone.
std::vector<std::string> XmlElements(std::string_view xml, const std::string& name);
// ... of elements that hold text alone: its entities undone.
std::vector<std::string> XmlTexts(std::string_view xml, const std::string& name);
// The first of them; empty: there is none.
std::string XmlText(std::string_view xml, const std::string& name);

}  // namespace lockstep::remote
