#include "lockstep/remote/sigv4.h"

#include <fmt/format.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <cctype>

namespace lockstep::remote {
namespace {

constexpr char kAlgorithm[] = "AWS4-HMAC-SHA256";

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string Hmac(const std::string& key, std::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  unsigned length = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), digest, &length);
  return {reinterpret_cast<const char*>(digest), length};
}

std::string HexSha256(const std::string& text) {
  return remote::HexSha256(std::as_bytes(std::span(text.data(), text.size())));
}

std::string SignedNames(const Signable& request) {
  std::string names;
  for (const auto& [name, value] : request.headers) names += (names.empty() ? "" : ";") + name;
  return names;
}

std::string Canonical(const Signable& request) {
  std::string headers;
  for (const auto& [name, value] : request.headers) headers += fmt::format("{}:{}\n", name, value);
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, QueryText(request.query), headers,
                     SignedNames(request), request.payload_hash);
}

}  // namespace

std::string HexSha256(std::span<const std::byte> data) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest);
  return Hex({reinterpret_cast<const char*>(digest), sizeof(digest)});
}

std::string Encode(const std::string& text, bool keep_slash) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte < 128 && std::isalnum(byte) != 0) || std::string_view("-._~").find(c) != std::string::npos;
    encoded += plain || (keep_slash && c == '/') ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return encoded;
}

std::string QueryText(const std::map<std::string, std::string>& query) {
  std::string text;
  for (const auto& [name, value] : query)
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", Encode(name, false), Encode(value, false));
  return text;
}

std::string Authorization(const Signable& request, const Keys& keys, const Scope& scope, const std::string& time) {
  const std::string day = time.substr(0, 8);
  const std::string where = fmt::format("{}/{}/{}/aws4_request", day, scope.region, scope.service);
  const std::string to_sign = fmt::format("{}\n{}\n{}\n{}", kAlgorithm, time, where, HexSha256(Canonical(request)));
  const std::string of_service = Hmac(Hmac(Hmac("AWS4" + keys.secret, day), scope.region), scope.service);
  return fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm, keys.access, where,
                     SignedNames(request), Hex(Hmac(Hmac(of_service, "aws4_request"), to_sign)));
}

}  // namespace lockstep::remote
