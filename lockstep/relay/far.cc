#include "lockstep/relay/far.h"

namespace lockstep::relay {

std::unique_ptr<Batches::Stub> Far::Reach() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPongMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  return Batches::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

void Far::Sign(grpc::ClientContext& context) const {
  if (!token.empty()) context.AddMetadata(kAuthorization, Bearer(token));
}

absl::Status Far::Problem(const grpc::Status& status) const {
  const std::string why = fmt::format("feed://{}: {}", address, status.error_message());
  switch (status.error_code()) {
    case grpc::UNAUTHENTICATED:
      return MakeError(absl::StatusCode::kPermissionDenied, why);
    case grpc::UNIMPLEMENTED:
      return InvalidArgument("feed://{}: what listens there is no data service", address);
    case grpc::CANCELLED:
      return Unavailable("feed://{}: the data service there has ended", address);
    case grpc::RESOURCE_EXHAUSTED:
      return MakeError(absl::StatusCode::kResourceExhausted, why);
    default:
      return Unavailable("{}", why);
  }
}

}  // namespace lockstep::relay
