# lockstep_proto(rpc link): lockstep_rpc_generated, of link.proto of this folder. What protoc writes is not held to our
# warnings.
function(lockstep_proto part name)
  set(out ${CMAKE_CURRENT_BINARY_DIR})
  set(generated ${out}/${name}.pb.cc ${out}/${name}.grpc.pb.cc)
  add_custom_command(
    OUTPUT ${generated} ${out}/${name}.pb.h ${out}/${name}.grpc.pb.h
    COMMAND protobuf::protoc --proto_path=${CMAKE_CURRENT_SOURCE_DIR} --cpp_out=${out} --grpc_out=${out}
            --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${name}.proto
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}.proto)
  add_library(lockstep_${part}_generated STATIC ${generated})
  target_include_directories(lockstep_${part}_generated SYSTEM PUBLIC ${out})
  target_link_libraries(lockstep_${part}_generated PUBLIC gRPC::grpc++_unsecure protobuf::libprotobuf)
endfunction()
