#!/usr/bin/env bash
# Installs the Debian 12 packages that smoe is built and tested with. This is the one list of them.
#
#   tools/setup.sh          what ./run.sh needs: compilers, build tools, libraries
#   tools/setup.sh --dev    also what ./test.sh needs: formatter, linter, a second compiler
#   tools/setup.sh --arm    also what ./test.sh arm needs: a compiler for 64-bit ARM, an emulator
#   tools/setup.sh --list   prints the names and installs nothing (after --dev, --arm: those too)
#
# Needs root, or sudo, only where something is missing. Says what it does; silent second time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The test libraries are here because configuring the build looks for them.
readonly BASE_PACKAGES=(
  g++ cmake ninja-build pkg-config ccache git ca-certificates
  libexpected-dev libfmt-dev libspdlog-dev libcli11-dev
  nlohmann-json3-dev libsimdjson-dev libxxhash-dev liburing-dev libedit-dev
  libgtest-dev libgmock-dev python3 python3-numpy
)
readonly DEV_PACKAGES=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev)
readonly ARM_PACKAGES=(g++-aarch64-linux-gnu qemu-user)
# Debian's plain cargo is too old; these follow the Rust that Firefox needs.
readonly RUST_PACKAGES=(rustc-web cargo-web)
readonly CRATE=rust/text/Cargo.toml

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The oldest Rust that builds the crate, from the crate's own manifest.
rust_version_wanted() {
  local found
  found=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$CRATE" | head -n 1)
  [ -n "$found" ] || die "$CRATE: no rust-version"
  printf '%s\n' "$found"
}

# Succeeds where a cargo of at least version $1 is in one of the places that the build looks in
# (cmake/Cargo.cmake).
cargo_is_new_enough() {
  local cargo have
  for cargo in cargo "${HOME:-/}/.cargo/bin/cargo" /usr/bin/cargo; do
    have=$("$cargo" --version 2>/dev/null | cut -d' ' -f2) || continue
    [ "$(printf '%s\n%s\n' "$1" "$have" | sort -V | head -n 1)" != "$1" ] || return 0
  done
  return 1
}

# Prints those of the named packages that are not installed.
missing_of() {
  local installed  # dpkg-query fails where it knows no such name; what it prints still counts
  installed=" $( (dpkg-query -W -f='${Package} ${Status}\n' "$@" 2>/dev/null || true) |
    sed -n 's/ install ok installed$//p' | tr '\n' ' ')"
  local name
  for name in "$@"; do
    case "$installed" in *" $name "*) ;; *) printf '%s\n' "$name" ;; esac
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "not root and no sudo; as root run: $*"
  fi
}

install_packages() {
  say "installing $# Debian packages: $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
    -o Dpkg::Use-Pty=0 "$@" >&2
}

main() {
  local list="" packages=("${BASE_PACKAGES[@]}")
  while [ $# -gt 0 ]; do
    case "$1" in
      --dev) packages+=("${DEV_PACKAGES[@]}") ;;
      --arm) packages+=("${ARM_PACKAGES[@]}") ;;
      --list) list=yes ;;
      *) die "unknown option $1; want --dev, --arm, --list" ;;
    esac
    shift
  done
  if [ -n "$list" ]; then
    printf '%s\n' "${packages[@]}" "${RUST_PACKAGES[@]}"
    return
  fi
  local rust_wanted
  rust_wanted=$(rust_version_wanted)
  cargo_is_new_enough "$rust_wanted" || packages+=("${RUST_PACKAGES[@]}")
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian; install yourself what these are called here: ${packages[*]}"
    return
  fi
  local missing
  mapfile -t missing < <(missing_of "${packages[@]}")
  [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
  cargo_is_new_enough "$rust_wanted" ||
    die "$(command -v cargo || echo cargo): found $(cargo --version 2>/dev/null || echo no Rust)," \
      "want $rust_wanted or newer (Debian 12 has it in bookworm-security)"
}

main "$@"
