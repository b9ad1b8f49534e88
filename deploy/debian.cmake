# The .deb: `cpack -G DEB` in the build folder. UCX is inside, see debian/lintian-overrides.
find_program(AKV_GZIP gzip REQUIRED)
set(changelog ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz)
add_custom_command(OUTPUT ${changelog}
  COMMAND ${AKV_GZIP} -9nc ${CMAKE_CURRENT_SOURCE_DIR}/debian/changelog > ${changelog}
  DEPENDS debian/changelog VERBATIM)
add_custom_target(debian_changelog ALL DEPENDS ${changelog})
install(FILES ${changelog} DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(FILES debian/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES debian/lintian-overrides DESTINATION share/lintian/overrides RENAME anchorkv)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME anchorkv)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "AnchorKV developers <anchorkv@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "disaggregated LLM serving over compressed KV states")
set(CPACK_PACKAGE_DESCRIPTION
"Prefill daemons run a model over prompts, compress the KV cache about 20
times layer by layer and send it over UCX; decode daemons hold it
compressed, attend to it directly and serve tokens by an OpenAI-compatible
HTTP API.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/debian/strip.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
# dpkg-shlibdeps would ask for the driver behind UCX's CUDA modules, which are opened only where it
# is; a test holds this list to what the daemons link.
set(CPACK_DEBIAN_PACKAGE_DEPENDS
"libc6 (>= 2.36), libstdc++6 (>= 12), libgcc-s1, libgomp1, libzmq5, libprometheus-cpp-core1.0, \
libdnnl2, libhwy1, libpcre2-8-0, libfmt9, libxxhash0, libssl3")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3")  # make-keys.sh, where keys are made on this host
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    "${CMAKE_CURRENT_SOURCE_DIR}/debian/postinst;${CMAKE_CURRENT_SOURCE_DIR}/debian/prerm")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_OUTPUT_FILE_PREFIX ${PROJECT_BINARY_DIR}/packages)
include(CPack)
