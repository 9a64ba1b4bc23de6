# Fails if an object kernels_ISA.cc defines a symbol that other files could be linked to, other than
# its table. Sanitizers' own symbols and weak data of type information are let through.
string(REPLACE "," ";" objects "${OBJECTS}")
set(checked 0)
foreach(object IN LISTS objects)
  if(NOT object MATCHES "kernels_[a-z0-9]+\\.cc\\.o(bj)?$")
    continue()
  endif()
  execute_process(COMMAND ${NM} --defined-only --extern-only ${object}
    OUTPUT_VARIABLE listing RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} ${object}: exit code ${failed}")
  endif()
  string(REPLACE "\n" ";" lines "${listing}")
  foreach(line IN LISTS lines)
    if(line STREQUAL "" OR line MATCHES " _ZN4smoe7kernels[0-9]+k[A-Za-z0-9]+KernelsE$"
        OR line MATCHES " (__asan|__odr_asan|__tsan|__ubsan|DW\\.ref)")
      continue()
    endif()
    message(SEND_ERROR "${object} exports ${line}; expected only its table")
  endforeach()
  math(EXPR checked "${checked} + 1")
endforeach()
message(STATUS "${checked} files checked")
