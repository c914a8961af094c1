# What nearly every file includes is read once, not for each of nine hundred: that was a third of a cold build. Twice, for
# tests are compiled with other options than parts. Files include what they use all the same: builds with sanitizers
# precompile nothing, and find what is missing.

# Whatever a precompiled header was made with must hold where it is used.
add_compile_options(-pthread)
get_target_property(definitions fmt::fmt INTERFACE_COMPILE_DEFINITIONS)
if(definitions)
  add_compile_definitions(${definitions})
endif()
if(NOT LOCKSTEP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Where libstdc++ suppresses these in its own headers, g++ 12 forgets that of what is precompiled.
  add_compile_options(-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
endif()
if(LOCKSTEP_CCACHE)
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # without it ccache keeps nothing
endif()

# The headers, and others named, of a target's own.
function(lockstep_precompile target)
  if(NOT LOCKSTEP_SANITIZE)
    foreach(header algorithm array chrono filesystem functional map memory mutex optional set span string string_view thread utility
            vector absl/status/statusor.h fmt/format.h ${ARGN})
      target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
    endforeach()
  endif()
endfunction()

# Those of another target.
function(lockstep_use_precompiled target provider)
  if(NOT LOCKSTEP_SANITIZE)
    target_precompile_headers(${target} REUSE_FROM ${provider})
  endif()
endfunction()

# For sources that are optimized in a way of their own: with headers that were not, g++ 12 crashes.
function(lockstep_optimize options)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "")  # a target needs a source
add_library(lockstep_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
target_link_libraries(lockstep_precompiled PRIVATE absl::statusor)
lockstep_precompile(lockstep_precompiled)

add_library(lockstep_precompiled_tests OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
set_target_properties(lockstep_precompiled_tests PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(lockstep_precompiled_tests PRIVATE -fPIE ${LOCKSTEP_TEST_OPTIONS})  # as programs are
target_link_libraries(lockstep_precompiled_tests PRIVATE absl::statusor GTest::gmock)
lockstep_precompile(lockstep_precompiled_tests gmock/gmock.h)
