// The vectors that AWS publishes: of its documentation of S3 ("Signature Calculations for the Authorization Header")
// and of its test suite of version 4.
#include "lockstep/remote/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::remote {
namespace {

using testing::EndsWith;

constexpr char kNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr char kTime[] = "20130524T000000Z";
const Keys kKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
const Scope kScope{"us-east-1", "s3"};

Signable Get(const std::string& path) {
  return {"GET",
          path,
          {},
          {{"host", "examplebucket.s3.amazonaws.com"}, {"x-amz-content-sha256", kNothing}, {"x-amz-date", kTime}},
          kNothing};
}

TEST(SigV4, GetOfARange) {
  Signable request = Get("/test.txt");
  request.headers["range"] = "bytes=0-9";
  EXPECT_EQ(Authorization(request, kKeys, kScope, kTime),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SigV4, PutOfAnObjectWhoseNameNeedsEncoding) {
  const std::string body = "Welcome to Amazon S3.";
  Signable request = Get(Encode("/test$file.text", true));
  request.method = "PUT";
  request.payload_hash = HexSha256(std::as_bytes(std::span(body)));
  EXPECT_EQ(request.payload_hash, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
  request.headers["x-amz-content-sha256"] = request.payload_hash;
  request.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  request.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  EXPECT_THAT(Authorization(request, kKeys, kScope, kTime),
              EndsWith("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST(SigV4, AQueryWithoutAndWithValues) {
  Signable request = Get("/");
  request.query = {{"lifecycle", ""}};
  EXPECT_THAT(Authorization(request, kKeys, kScope, kTime),
              EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  request.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_THAT(Authorization(request, kKeys, kScope, kTime),
              EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(SigV4, GetVanillaOfTheTestSuite) {
  const Signable request{
      "GET", "/", {}, {{"host", "example.amazonaws.com"}, {"x-amz-date", "20150830T123600Z"}}, kNothing};
  const Keys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  EXPECT_THAT(Authorization(request, keys, {"us-east-1", "service"}, "20150830T123600Z"),
              EndsWith("Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"));
}

TEST(SigV4, OtherKeysOrATextThatIsNotTheSameSignOtherwise) {
  const std::string signed_so = Authorization(Get("/a"), kKeys, kScope, kTime);
  EXPECT_NE(signed_so, Authorization(Get("/b"), kKeys, kScope, kTime));
  EXPECT_NE(signed_so, Authorization(Get("/a"), {kKeys.access, "x", ""}, kScope, kTime));
  EXPECT_NE(signed_so, Authorization(Get("/a"), kKeys, {"eu-west-1", "s3"}, kTime));
}

TEST(SigV4, Encoding) {
  EXPECT_EQ(Encode("a b/ü+~", true), "a%20b/%C3%BC%2B~");
  EXPECT_EQ(Encode("a/b", false), "a%2Fb");
}

}  // namespace
}  // namespace lockstep::remote
