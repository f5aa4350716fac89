# colibri_add_plugin(NAME <file name without .so>
#                    SOURCES <entry units, compiled for the baseline ISA>
#                    [ISA_SOURCES <kernel units>] [ISA_FLAGS <-m flags of the kernel units>]
#                    [OUTPUT_DIRECTORY <dir>] [NO_INSTALL])
#
# Makes one plugin: a MODULE that exports only colibri_plugin_*, needs nothing but libc/libm, is never unloaded and
# carries its .note.colibri. Works in Colibri's own tree and, through find_package(colibri), outside of it.
# ISA units may have different flags: call set_source_files_properties(... COMPILE_OPTIONS) instead of ISA_FLAGS.

set(COLIBRI_PLUGIN_VERSION_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/colibri-plugin.map)

function(colibri_add_plugin)
  cmake_parse_arguments(P "NO_INSTALL" "NAME;OUTPUT_DIRECTORY" "SOURCES;ISA_SOURCES;ISA_FLAGS" ${ARGN})
  if(NOT P_NAME OR NOT P_SOURCES)
    message(FATAL_ERROR "colibri_add_plugin: NAME and SOURCES are required")
  endif()
  set(target colibri-plugin-${P_NAME})
  add_library(${target} MODULE ${P_SOURCES} ${P_ISA_SOURCES})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${P_NAME} C_VISIBILITY_PRESET hidden
    INTERPROCEDURAL_OPTIMIZATION OFF LINK_DEPENDS ${COLIBRI_PLUGIN_VERSION_SCRIPT})
  if(P_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${P_OUTPUT_DIRECTORY})
  elseif(COLIBRI_PLUGIN_OUTPUT_DIR)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${COLIBRI_PLUGIN_OUTPUT_DIR})
  endif()
  if(P_ISA_FLAGS)
    set_source_files_properties(${P_ISA_SOURCES} PROPERTIES COMPILE_OPTIONS "${P_ISA_FLAGS}")
  endif()
  if(TARGET colibri_flags)
    target_link_libraries(${target} PRIVATE colibri_flags)
  else()
    target_compile_options(${target} PRIVATE -ffp-contract=off -fno-math-errno)
  endif()
  target_link_libraries(${target} PRIVATE colibri::sdk m)
  target_link_options(${target} PRIVATE -Wl,--version-script=${COLIBRI_PLUGIN_VERSION_SCRIPT} -Wl,-z,nodelete
    -Wl,-z,now -Wl,-z,relro)
  if(NOT COLIBRI_SANITIZE) # sanitizer runtimes are resolved from the executable
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  # The loader refuses group- and world-writable plugins; a permissive umask must not break the build tree.
  add_custom_command(TARGET ${target} POST_BUILD COMMAND chmod go-w $<TARGET_FILE:${target}> $<TARGET_FILE_DIR:${target}>
    VERBATIM)
  if(NOT P_NO_INSTALL AND COLIBRI_PLUGIN_SUBDIR)
    install(TARGETS ${target} LIBRARY DESTINATION ${COLIBRI_PLUGIN_SUBDIR})
  endif()
endfunction()
