# gRPC, protobuf and Abseil are some fifty shared libraries, which take the dynamic linker 15 ms at every start of
# `lockstep` and make it larger in memory. So they are linked statically, all of them or none: a program must not have
# one copy by each way. Sanitizers name the shared ones in their suppressions, and keep them.

# Of the packages' imported targets that this directory has.
function(lockstep_link_statically)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER targets INCLUDE REGEX "^(absl|gRPC|protobuf|re2|c-ares)::")
  foreach(pass check replace)
    foreach(target ${targets})
      foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE)
        get_target_property(shared ${target} ${property})
        if(NOT shared MATCHES "\\.so[.0-9]*$" OR target MATCHES "plugin_support|libprotoc$")
          continue()
        endif()
        string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${shared}")  # beside libX.so.1.2
        if(pass STREQUAL replace)
          set_target_properties(${target} PROPERTIES ${property} "${archive}")
        elseif(NOT EXISTS "${archive}")
          message(STATUS "${archive} is missing: linking with shared libraries instead")
          return()
        endif()
      endforeach()
    endforeach()
  endforeach()
endfunction()
