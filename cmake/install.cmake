# What an installation holds, wherever its prefix is; lockstep/node/install.cc finds it from the binary.
install(TARGETS lockstep RUNTIME DESTINATION bin)
install(TARGETS lockstep-client lockstep-gloo lockstep-nccl-profiler lockstep-stage LIBRARY DESTINATION lib)
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/lockstep/nccl/liblockstep-nccl-profiler.so DESTINATION lib/lockstep/nccl) # a link
install(FILES lockstep/stage/stage.h lockstep/stage/infer.h DESTINATION include/lockstep/stage)
install(DIRECTORY python/lockstep DESTINATION share/lockstep/python PATTERN __pycache__ EXCLUDE)
install(DIRECTORY presets DESTINATION share/lockstep)
install(FILES docs/alerts/lockstep.rules.yml DESTINATION share/lockstep/alerts)
install(FILES README.md LICENSE packaging/copyright DESTINATION share/doc/lockstep)
install(DIRECTORY docs examples DESTINATION share/doc/lockstep PATTERN __pycache__ EXCLUDE PATTERN *.test.yml EXCLUDE)

# The wheel brings the libraries that the binary needs, in lib/lockstep. An RPATH and no RUNPATH: it holds for what these need in turn.
set_target_properties(lockstep PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/lockstep")
target_link_options(lockstep PRIVATE -Wl,--disable-new-dtags)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_PACKAGE_CONTACT "The Lockstep authors <lockstep@lockstep.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "launches, watches and restarts synchronous AI training jobs")
set(CPACK_PACKAGE_DESCRIPTION "Takes the place of torchrun, names the rank that holds the others back, keeps a
checkpoint of every step in memory, and brings a job back after a crash or a
hang, bit for bit.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS TRUE)
set(CPACK_DEBIAN_PACKAGE_DEPENDS python3)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3-torch)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS libpq5)  # loaded for a journal in PostgreSQL
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/prerm ${PROJECT_SOURCE_DIR}/packaging/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
include(CPack)
