# One folder, one target, one number. lockstep_part() declares lockstep_<name> and refuses a link upwards or sideways.
#
#   lockstep_part(detect NUMBER 5 SOURCES hang.cc PARTS incident base LIBS absl::status TESTS hang_test.cc)
#
# PRECOMPILED names headers that nearly all of its files include, and others' don't.

set(LOCKSTEP_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Werror)
set(LOCKSTEP_TEST_OPTIONS $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:RelWithDebInfo>:-g0>)
include(cmake/precompiled.cmake)

function(lockstep_part name)
  cmake_parse_arguments(part "" "NUMBER" "SOURCES;PARTS;LIBS;TESTS;PRECOMPILED" ${ARGN})
  set(target lockstep_${name})
  add_library(${target} STATIC ${part_SOURCES})
  target_compile_options(${target} PRIVATE ${LOCKSTEP_WARNINGS})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${part_LIBS})
  if(part_PRECOMPILED)
    lockstep_precompile(${target} ${part_PRECOMPILED})
  elseif(NOT part_SOURCES MATCHES "[.]c(;|$)")  # those that others load are in C
    lockstep_use_precompiled(${target} lockstep_precompiled)
  endif()
  set_property(GLOBAL PROPERTY lockstep_number_${name} ${part_NUMBER})
  foreach(lower ${part_PARTS})
    get_property(number GLOBAL PROPERTY lockstep_number_${lower})
    if(NOT DEFINED number OR NOT number LESS part_NUMBER)
      message(FATAL_ERROR "part ${name} (${part_NUMBER}) may not link ${lower} (${number}): only lower numbers")
    endif()
    target_link_libraries(${target} PUBLIC lockstep_${lower})
  endforeach()
  foreach(source ${part_TESTS})
    get_filename_component(test ${source} NAME_WE)
    lockstep_test(${name}_${test} SOURCES ${source} LIBS ${target})
  endforeach()
endfunction()

# A GoogleTest binary, registered as one ctest entry. LABEL is fast unless said otherwise. Tests are compiled with -O1
# and without lines for debuggers, which the presets with sanitizers have, for half of the time of a cold build is theirs;
# what they test is not.
function(lockstep_test name)
  cmake_parse_arguments(test "" "LABEL" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${test_SOURCES})
  target_compile_options(${name} PRIVATE ${LOCKSTEP_WARNINGS} ${LOCKSTEP_TEST_OPTIONS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${test_LIBS} GTest::gmock GTest::gtest_main)
  lockstep_use_precompiled(${name} lockstep_precompiled_tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT test_LABEL)
    set(test_LABEL fast)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${test_LABEL} TIMEOUT 120)
endfunction()
