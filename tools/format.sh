#!/usr/bin/env bash
# Formats the C++ sources with clang-format 14, or only checks them.
#
#   tools/format.sh [FILE...]           rewrites (default: every source)
#   tools/format.sh --check [FILE...]   says what differs; exit 1 if any, 77 without clang-format-14
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run -Werror --ferror-limit=3)
  shift
fi
if ! command -v clang-format-14 >/dev/null; then
  echo "skipped: clang-format-14 is absent; tools/setup.sh --dev installs it" >&2
  exit 77
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(find . \( -name build -o -name target -o -name .git \) -prune -o \
    \( -name '*.h' -o -name '*.cc' \) -print | sort)
fi
[ ${#files[@]} -eq 0 ] || printf '%s\0' "${files[@]}" |
  xargs -0 -n 16 -P "$(nproc)" clang-format-14 "${mode[@]}" --
