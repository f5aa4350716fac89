# colibri_add_kernel_test(<plugin> [NAME <test>] [ARGS <options of colibri-kernelcheck>...])
#
# A CTest test that compares the kernels of a plugin made by colibri_add_plugin(NAME <plugin> ...) with the scalar
# reference. Skipped where the CPU lacks what the plugin needs. Call enable_testing() first.
function(colibri_add_kernel_test plugin)
  cmake_parse_arguments(T "" "NAME" "ARGS" ${ARGN})
  if(NOT TARGET colibri-plugin-${plugin})
    message(FATAL_ERROR "colibri_add_kernel_test: there is no plugin ${plugin}; colibri_add_plugin comes first")
  endif()
  if(NOT T_NAME)
    set(T_NAME kernelcheck/${plugin})
  endif()
  add_test(NAME ${T_NAME} COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:colibri::kernelcheck> ${T_ARGS}
           $<TARGET_FILE:colibri-plugin-${plugin}>)
  set_tests_properties(${T_NAME} PROPERTIES SKIP_RETURN_CODE 77)
endfunction()
