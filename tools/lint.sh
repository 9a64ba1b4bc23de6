#!/usr/bin/env bash
# Runs clang-tidy 14 with the project's checks over sources: tools/lint.sh [FILE.cc...].
# Without files: all of src/ (several minutes on 2 cores). Compile commands are preset clang's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v clang-tidy-14 >/dev/null ||
  { echo "clang-tidy-14 is absent; run: tools/setup.sh --dev" >&2; exit 1; }
[ -f build/clang/compile_commands.json ] || cmake --preset clang >&2
# The one header that the build writes.
cmake --build build/clang --target commit_header >&2
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(find src -name '*.cc' ! -name '*_fuzz.cc' | sort)
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p build/clang
