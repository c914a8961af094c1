#include "lockstep/remote/xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::remote {
namespace {

using testing::ElementsAre;

TEST(Xml, TextsInOrderWithEntitiesUndone) {
  const std::string xml =
      "<?xml version=\"1.0\"?><R xmlns=\"u\"><C><Key>a&amp;lt;b</Key></C><C><Key>&quot;c&#39;</Key></C></R>";
  EXPECT_THAT(XmlTexts(xml, "Key"), ElementsAre("a&lt;b", "\"c'"));
  EXPECT_THAT(XmlElements(xml, "C"), ElementsAre("<Key>a&amp;lt;b</Key>", "<Key>&quot;c&#39;</Key>"));
  EXPECT_EQ(XmlText(xml, "Token"), "");
}

TEST(Xml, WhatIsCutIsNotTaken) {
  const std::string whole = "<R><Key>a</Key><Key>b</Key></R>";
  for (size_t length = 0; length <= whole.size(); ++length) {
    const auto texts = XmlTexts(std::string_view(whole).substr(0, length), "Key");
    EXPECT_EQ(texts.size(), size_t{length >= 15} + size_t{length >= 27}) << length;
  }
}

}  // namespace
}  // namespace lockstep::remote
