// Signatures of AWS, version 4 ("AWS4-HMAC-SHA256", docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html),
// which every store that speaks S3 checks. Pure; SHA-256 and HMAC are OpenSSL's.
//
//   const std::string value = Authorization(request, keys, {"us-east-1", "s3"}, "20130524T000000Z");
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace lockstep::remote {

struct Keys {
  std::string access, secret;
  std::string session;  // of temporary keys; empty: they are not
};

struct Scope {
  std::string region, service;
};

struct Signable {
  std::string method;
  std::string path;                            // encoded
  std::map<std::string, std::string> query;    // not encoded
  std::map<std::string, std::string> headers;  // all that are signed; names in lower case
  std::string payload_hash;                    // HexSha256 of the body
};

std::string HexSha256(std::span<const std::byte> data);
// All but letters, digits and "-._~" as %XX; with `keep_slash`, "/" stays.
std::string Encode(const std::string& text, bool keep_slash);
// "a=1&b=%20", in the order of the names as signatures want it.
std::string QueryText(const std::map<std::string, std::string>& query);
// The value of the Authorization header. `time`: UTC, "20130524T000000Z".
std::string Authorization(const Signable& request, const Keys& keys, const Scope& scope, const std::string& time);

}  // namespace lockstep::remote
