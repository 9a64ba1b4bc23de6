#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. On Debian 12, as root or with sudo.
#
#   ./test.sh            all of the stages below but the last four
#   ./test.sh quick      the release build and its own tests
#   ./test.sh STAGE...   these stages only
#
#   release     release build; unit tests, house rules, whole-program tests
#   scalar      the arithmetic's tests again with the scalar kernels
#   reference   a built smoe against ../shared/reference (each skipped aloud where that is absent)
#   dev         debug build with address and undefined sanitizers; unit tests, damaged files
#   tsan        thread sanitizer build; unit tests of the folders that have threads
#   clang       clang 14 debug build; unit tests
#   lint        clang-tidy over every source
#   arm         the kernels for 64-bit ARM in emulation, on three kinds of CPU; skipped aloud where
#               the compiler for it is absent (tools/setup.sh --arm)
#
# Every stage runs though an earlier one failed; the exit code is 1 if any did. Reports as JUnit in
# build/reports. SMOE_TEST_SECONDS_MAX: after so many seconds the stage `dev` is left out, aloud.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly REPORTS=build/reports
readonly ARITHMETIC='^(kernels|experts|model|engine|cross)_test$'
readonly THREADED='^(base|io|experts|engine|cross)_test$'
failed_stages=()

say() { printf 'test.sh: %s\n' "$*" >&2; }

# run_tests STAGE PRESET [ctest option...]
run_tests() {
  local stage=$1 preset=$2
  shift 2
  ctest --test-dir "build/$preset" --parallel "$(nproc)" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$REPORTS/$stage.xml" "$@"
}

stage_release() {
  tools/build.sh release && run_tests release release --label-exclude '^reference$'
}

stage_scalar() {
  tools/build.sh release && SMOE_ISA=scalar run_tests scalar release --label-regex "$ARITHMETIC"
}

stage_reference() {
  tools/build.sh release && run_tests reference release --label-regex '^reference$'
}

stage_dev() {
  if [ "$SECONDS" -gt "${SMOE_TEST_SECONDS_MAX:-$SECONDS}" ]; then
    say "dev: skipped after $SECONDS s of $SMOE_TEST_SECONDS_MAX; run it alone: ./test.sh dev"
    return
  fi
  # Damaged files once more: a sanitizer sees a bad read that happens to end in a refusal.
  # Rust's own tests run in the release stage; nothing in them would be seen here.
  tools/build.sh dev &&
    run_tests dev dev --label-exclude '^(reference|rules)$' --exclude-regex '^rust_text$' &&
    run_tests dev_damaged dev --label-regex '^reference$' --tests-regex damaged
}

stage_tsan() {
  tools/build.sh tsan && run_tests tsan tsan --label-regex "$THREADED"
}

stage_clang() {
  tools/build.sh clang && run_tests clang clang --label-exclude '^(reference|rules)$'
}

stage_lint() {
  tools/lint.sh
}

# All that the emulator knows, then a CPU without products of 8-bit matrices, then one without dot
# products of bytes either. Threads and files are tested once.
stage_arm() {
  local tool
  for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v "$tool" >/dev/null && continue
    say "arm: skipped, there is no $tool here; tools/setup.sh --arm installs it"
    return
  done
  tools/build.sh arm64 && run_tests arm arm64 &&
    QEMU_CPU=cortex-a76 run_tests arm_dot arm64 --label-regex '^kernels_test$' &&
    QEMU_CPU=cortex-a72 run_tests arm_plain arm64 --label-regex '^kernels_test$'
}

run_stage() {
  local stage=$1 begin=$SECONDS
  say "stage $stage"
  if "stage_$stage"; then
    say "stage $stage: passed in $((SECONDS - begin)) s"
  else
    say "stage $stage: FAILED after $((SECONDS - begin)) s"
    failed_stages+=("$stage")
  fi
}

main() {
  local stages=("$@")
  case "${1:-all}" in
    all) stages=(release scalar reference dev) ;;
    quick) stages=(release) ;;
  esac
  local stage
  for stage in "${stages[@]}"; do
    declare -F "stage_$stage" >/dev/null ||
      { say "no stage '$stage'; see the top of test.sh"; exit 2; }
  done
  rm -rf "$REPORTS"
  mkdir -p "$REPORTS"
  tools/setup.sh --dev
  for stage in "${stages[@]}"; do
    run_stage "$stage"
  done
  say "$(python3 tools/count_tests.py "$REPORTS") in $SECONDS s"
  [ ${#failed_stages[@]} -eq 0 ] || { say "failed stages: ${failed_stages[*]}"; exit 1; }
}

main "$@"
