#!/usr/bin/env bash
# From a clean clone to an answer: installs what is missing, builds, makes the vault of the bundled
# model, answers one prompt and, on a terminal, goes on as a chat. On Debian 12, as root or with
# sudo. The second time only the answer takes time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly PROMPT="What is smoe?"
readonly SMOE=build/release/smoe

main() {
  echo "run.sh: 1 of 3: packages" >&2
  tools/setup.sh
  echo "run.sh: 2 of 3: build (the first time some 12 minutes of processor time, by all cores)," \
    "and the vault of models/tiny-moe" >&2
  # manuals: with them `cmake --install build/release` has all that it copies.
  tools/build.sh release smoe tiny_vault manuals
  echo "run.sh: 3 of 3: $SMOE run --chat \"$PROMPT\"" >&2
  "$SMOE" run --chat "$PROMPT"
  if [ -t 0 ] && [ -t 1 ]; then
    echo "run.sh: going on as: $SMOE chat" >&2
    exec "$SMOE" chat
  fi
}

main "$@"
