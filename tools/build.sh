#!/usr/bin/env bash
# Configures and builds one preset: tools/build.sh PRESET [target...]. Without targets: everything.
#
# Configures only where that was never done or the presets changed since; the generated build files
# notice every other change by themselves. Uses all cores; CMAKE_BUILD_PARALLEL_LEVEL overrides.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:?usage: tools/build.sh PRESET [target...]}
shift
folder=build/$preset
if [ ! -f "$folder/build.ninja" ] || [ CMakePresets.json -nt "$folder/build.ninja" ]; then
  printf 'build: configuring preset %s\n' "$preset" >&2
  cmake --preset "$preset" >&2
fi
printf 'build: %s in %s\n' "${*:-everything}" "$folder" >&2
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
targets=()
[ $# -eq 0 ] || targets=(--target "$@")
cmake --build "$folder" --parallel "$jobs" "${targets[@]}" >&2
