# cmake -DFILE=in -DSOURCE=out.cc -DSYMBOL=Name -P EmbedFile.cmake: see Embed.cmake.
get_filename_component(name ${FILE} NAME)
file(READ ${FILE} bytes HEX)
string(LENGTH "${bytes}" length)
math(EXPR length "${length} / 2")
# Sixteen bytes a line, then each byte a character literal: no limit on literals is reached.
string(REPEAT "[0-9a-f]" 32 line)
string(REGEX REPLACE "(${line})" "\\1\n    " bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
file(WRITE ${SOURCE}
"// Made from ${name} by smoe_embed.
#include <string_view>

namespace smoe::embedded {
namespace {
constexpr char kBytes[] = {
    ${bytes}'\\0'};
}  // namespace

std::string_view ${SYMBOL}();
std::string_view ${SYMBOL}() { return {kBytes, ${length}}; }

}  // namespace smoe::embedded
")
