# Runs on the laid-out package: UCX's libraries come from its wheel with their symbols.
find_program(AKV_STRIP strip REQUIRED)
file(GLOB_RECURSE libraries "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/lib/anchorkv/*.so*")
foreach(library IN LISTS libraries)
  execute_process(COMMAND ${AKV_STRIP} --strip-unneeded --remove-section=.comment ${library}
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()
