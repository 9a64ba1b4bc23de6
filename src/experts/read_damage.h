// experts/read_damage.h: how the bytes of a read that failed its checksum differ from the right
// ones, for the log: pages of zeros are memory's doing, single bits a cable's or a memory cell's.
#pragma once

#include <string>

#include "base/bytes.h"

namespace smoe::experts {

// "3 of 729 pages differed, bytes 8192 to 20480, 3 of them read as zeros". Pages of 4096 bytes from
// the start of the expert. Requires equal sizes.
std::string ReadDamageText(Bytes wrong, Bytes right);

}  // namespace smoe::experts
