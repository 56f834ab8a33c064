#!/usr/bin/env bash
# Installs what Raffia needs, from the distribution's own packages (Debian 12, Ubuntu 24.04 or newer):
#   scripts/setup.sh [--no-training] [--no-tests] [--arm64]
# --no-training: leaves out LibTorch, which is most of the download. The library and the command `raffia` need no torch;
#                configure them with -DRAFFIA_BUILD_TORCH=OFF.
# --no-tests:    leaves out what only tests and checks need.
# --arm64:       adds a cross compiler and qemu, for scripts/test_arm64.sh.
# Says first what it installs and how much that is; what apt prints goes into a log. Needs root or sudo, and only if something is missing.
set -euo pipefail

training=true
tests=true
arm64=false
for argument in "$@"; do
  case "$argument" in
    --no-training) training=false ;;
    --no-tests) tests=false ;;
    --arm64) arm64=true ;;
    *)
      echo "usage: scripts/setup.sh [--no-training] [--no-tests] [--arm64]" >&2
      exit 2
      ;;
  esac
done

packages=(
  g++ cmake ninja-build ccache pkg-config git
  libhwy-dev libfmt-dev libxxhash-dev libcli11-dev nlohmann-json3-dev
  zlib1g-dev liblzma-dev libsentencepiece-dev libedit-dev libstb-dev
  gnuplot-nox python3
)
# Torch runs at a tenth of its speed on the reference BLAS, which Debian installs with it.
if $training; then packages+=(libtorch-dev libopenblas0-openmp libgloo-dev libtomlplusplus-dev); fi
# clang is pinned: each version of clang-format formats a little differently.
if $tests; then packages+=(libgtest-dev clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14 xz-utils zsh fish); fi
if $arm64; then packages+=(g++-aarch64-linux-gnu qemu-user binutils xz-utils); fi
if $tests && $training; then packages+=(python3-torch python3-pytest); fi

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "setup.sh: root is needed for: $* (there is no sudo; run this script as root)" >&2
    exit 1
  fi
}

is_installed() { [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# require_version PACKAGE MINIMUM
require_version() {
  local found
  found=$(dpkg-query --show --showformat='${Version}' "$1")
  if dpkg --compare-versions "$found" lt "$2"; then
    echo "setup.sh: $1 is $found, expected $2 or newer: this distribution is too old; install a newer one by hand" >&2
    exit 1
  fi
}

log=$(mktemp -t raffia-setup-XXXXXX.log)
# apt ARGUMENT...: quiet. If it fails, the end of what it printed is shown.
apt() {
  as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get "$@" >>"$log" 2>&1 && return
  tail -n 20 "$log" >&2
  echo "setup.sh: apt-get $1 failed; all of its output is in $log" >&2
  exit 1
}

# install PACKAGE...: looks up the packages, says in three lines what and how much, then installs it.
install() {
  echo "setup.sh: looks up packages"
  apt update
  local plan count amount what="build tools and libraries"
  # As root: apt-get plans nothing without its lock. --assume-no: it answers no to itself, and fails.
  plan=$(as_root env LC_ALL=C apt-get install --no-install-recommends --assume-no "$@" 2>/dev/null || true)
  count=$(sed -n 's/.* \([0-9]*\) newly installed.*/\1/p' <<<"$plan")
  amount=$(sed -n -e 's/^Need to get \(.*\) of archives.*/\1 to download/p' \
    -e 's/^After this operation, \(.*\) of additional.*/\1 on disk/p' <<<"$plan" | paste -sd';' | sed 's/;/, /')
  if $tests; then what+=", test tools (--no-tests leaves them out)"; fi
  if $training; then what+=", LibTorch for training (most of it; --no-training leaves it out)"; fi
  echo "setup.sh: installs ${count:-new} packages: ${amount:-size unknown}"
  echo "setup.sh: $what"
  echo "setup.sh: this takes a minute or two; what apt prints goes to $log"
  apt install -y --no-install-recommends "$@"
}

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if ((${#missing[@]} > 0)); then install "${missing[@]}"; fi
rm -f "$log"

require_version cmake 3.25
require_version libhwy-dev 1.0
