// Forms that agents say and are told. Included by encode_said.cc and encode_told.cc alone.
#pragma once

#include <vector>

#include "lockstep/rpc/encode.h"

namespace lockstep::rpc {

inline void Put(const control::CheckpointId& point, Point* wire) {
  wire->set_epoch(point.epoch.value());
  wire->set_step(point.step);
}

inline control::CheckpointId Get(const Point& wire) { return {EpochId(wire.epoch()), wire.step()}; }

inline std::vector<control::CheckpointId> Get(const google::protobuf::RepeatedPtrField<Point>& wire) {
  std::vector<control::CheckpointId> points;
  for (const Point& point : wire) points.push_back(Get(point));
  return points;
}

template <typename Wire>
void Put(const control::PartWritten& part, Wire& wire) {
  PartWritten* to = wire.mutable_part_written();
  Put(part.point, to->mutable_point());
  to->set_node(part.node);
  to->set_error(part.error);
  to->set_gone(part.gone);
  to->set_files(part.files);
}
template <typename Wire>
void Put(const control::DiskDone&, Wire& wire) {
  wire.mutable_disk_done();
}

inline control::PartWritten Get(const PartWritten& wire) {
  return {Get(wire.point()), wire.node(), wire.error(), wire.gone(), wire.files()};
}

}  // namespace lockstep::rpc
