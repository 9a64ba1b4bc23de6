// base/printable.h: text of others for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace smoe {

// Text from a file or a model, or a name of a file, made safe for a terminal and one line: control
// characters, U+0080 to U+009F among them, and bytes that are no UTF-8 become \n, \t or \xNN.
std::string Printable(std::string_view text);

}  // namespace smoe
