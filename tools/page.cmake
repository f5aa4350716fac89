# cmake -DCOLIBRI=<executable> -DARGUMENTS="--man run" -DOUT=<file> -P page.cmake
separate_arguments(arguments UNIX_COMMAND "${ARGUMENTS}")
get_filename_component(folder "${OUT}" DIRECTORY)
file(MAKE_DIRECTORY "${folder}")
execute_process(COMMAND "${COLIBRI}" ${arguments} OUTPUT_FILE "${OUT}" RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  file(REMOVE "${OUT}")
  message(FATAL_ERROR "${COLIBRI} ${ARGUMENTS}: ${result}")
endif()
