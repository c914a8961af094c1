#include "lockstep/http/url.h"

#include <gtest/gtest.h>

namespace lockstep::http {
namespace {

std::string Parts(std::string_view text) {
  const absl::StatusOr<Url> url = ParseUrl(text);
  return url.ok() ? url->Origin() + " " + url->target : Message(url.status());
}

TEST(Url, IsTakenApart) {
  EXPECT_EQ(Parts("http://host"), "http://host:80 /");
  EXPECT_EQ(Parts("http://host:9000/hook?key=1#top"), "http://host:9000 /hook?key=1");
  EXPECT_EQ(Parts("https://host?key=1"), "https://host:443 /?key=1");
  EXPECT_EQ(Parts("https://[::1]:8443/a"), "https://[::1]:8443 /a");
  EXPECT_EQ(ParseUrl("http://[::1]/")->host, "::1");
}

TEST(Url, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(Parts("ftp://host"), "the URL must begin with http:// or https://");
  EXPECT_EQ(Parts("http://"), "the URL names no host");
  EXPECT_EQ(Parts("http://[::1"), "the URL's host lacks its closing bracket");
  EXPECT_EQ(Parts("http://host:0"), "the URL's port must be between 1 and 65535, found \"0\"");
  EXPECT_EQ(Parts("http://[::1]80"), "the URL's port must be between 1 and 65535, found \"80\"");
  EXPECT_EQ(Parts("http://host:8x"), "the URL's port must be between 1 and 65535, found \"8x\"");
  EXPECT_EQ(Parts("http://me:secret@host"), "the URL must not hold a user name or password");
  EXPECT_EQ(Parts("http://host/a b"), "the URL must not hold spaces or control characters");
}

}  // namespace
}  // namespace lockstep::http
