#!/usr/bin/env bash
# Installs what Raffia needs, from the distribution's own packages (Debian 12, Ubuntu 24.04 or newer): scripts/setup.sh [--no-tests]
# --no-tests: what it needs to be built and run, not what tests and checks need beside that.
# Needs root or sudo, and only when something is missing.
set -euo pipefail

case "${1-}" in
  "") tests=true ;;
  --no-tests) tests=false ;;
  *)
    echo "usage: scripts/setup.sh [--no-tests]" >&2
    exit 2
    ;;
esac

packages=(
  g++ cmake ninja-build ccache pkg-config git
  libhwy-dev libfmt-dev libxxhash-dev libcli11-dev nlohmann-json3-dev
  zlib1g-dev liblzma-dev libsentencepiece-dev libedit-dev
  gnuplot-nox python3
  # Training: torch runs at a tenth of its speed on the reference BLAS, which Debian installs with it.
  libtorch-dev libopenblas0-openmp libgloo-dev libtomlplusplus-dev
)
# clang is pinned: each version of clang-format formats a little differently.
if $tests; then packages+=(libgtest-dev clang-14 libclang-rt-14-dev clang-format-14 python3-torch python3-pytest); fi

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

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done

if ((${#missing[@]} > 0)); then
  echo "setup.sh: installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

require_version cmake 3.25
require_version libhwy-dev 1.0
