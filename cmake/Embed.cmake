# smoe_embed(TARGET FILE SYMBOL)
#
# Compiles the bytes of FILE into TARGET as
#
#   namespace smoe::embedded { std::string_view SYMBOL(); }
#
# which the caller declares where it is used. Made again at build time whenever FILE changes; FILE
# may itself be made by the build. Meant for texts: the compiler reads one character literal a byte.
set(SMOE_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/EmbedFile.cmake)

function(smoe_embed target file symbol)
  get_filename_component(file ${file} ABSOLUTE)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/embedded/${symbol}.cc)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DFILE=${file} -DSOURCE=${source} -DSYMBOL=${symbol}
            -P ${SMOE_EMBED_SCRIPT}
    DEPENDS ${file} ${SMOE_EMBED_SCRIPT}
    COMMENT "Embedding ${file}"
    VERBATIM)
  target_sources(${target} PRIVATE ${source})
endfunction()
