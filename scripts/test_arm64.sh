#!/usr/bin/env bash
# Builds Raffia for 64-bit Arm by a cross compiler, and runs the tests without torch in qemu, NEON against the references in double:
#   scripts/test_arm64.sh [--jobs N] [--tests REGEX] [--with "COMMAND"]
# --jobs:  compilers and tests at a time; as many as there are cores by default.
# --tests: runs only tests with such names, and leaves the document alone.
# --with:  a command that starts the builds and each part of the tests, such as "nice -n 10".
# Five stages: packages, libraries of arm64 (in build/arm64-sysroot), build (in build/arm64), tests, files compared with those of the build
# for this machine (in build). What is done already is not done again: after an interruption, the tests continue where they stopped.
# The summary goes into docs/arm.md. For Debian 12 on x86; needs root or sudo if packages are missing. Takes about an hour on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/tables.sh

build=$PWD/build/arm64
sysroot=$PWD/build/arm64-sysroot
results=$build/test-results
libraries=(libc6-dev libstdc++-12-dev libhwy-dev libfmt-dev libxxhash-dev libcli11-dev nlohmann-json3-dev zlib1g-dev liblzma-dev
  libsentencepiece-dev libedit-dev libstb-dev libgtest-dev)
part_size=80 # tests in one part

# NAME REASON: what does not run in qemu.
excluded=()

usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
  exit "$1"
}

fail() {
  echo "test_arm64.sh: $*" >&2
  exit 1
}

jobs=$(nproc)
only=
with=()
while (($# > 0)); do
  case "$1" in
    --help) usage 0 ;;
    --jobs) jobs=${2-} && shift ;;
    --tests) only=${2-} && shift ;;
    --with) read -ra with <<<"${2-}" && shift ;;
    *) usage 2 >&2 ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || usage 2 >&2

# stage NAME COMMAND...: runs it and tells how long it took.
stage() {
  local name=$1 start=$SECONDS
  shift
  echo "==== $name"
  "$@"
  echo "==== $name: $((SECONDS - start)) s"
}

packages() { scripts/setup.sh --no-training --arm64; }

# The libraries of arm64, from the sources of packages of this machine. apt works in a directory of its own: nothing is installed here.
fill_sysroot() {
  [[ -e $sysroot/complete ]] && return
  local apt=$PWD/build/arm64-apt package link
  rm -rf "$apt" "$sysroot"
  mkdir -p "$apt"/{state/lists/partial,cache/archives/partial} "$sysroot"
  : >"$apt/state/status"
  cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Acquire::Languages "none";
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
CONF
  for arguments in "update" "install --yes --download-only ${libraries[*]}"; do
    # shellcheck disable=SC2086  # the arguments are words
    APT_CONFIG=$apt/apt.conf apt-get -q $arguments >"$apt/log" 2>&1 || {
      tail -n 20 "$apt/log" >&2
      fail "apt-get ${arguments%% *} failed for arm64; expected the packages of Debian 12"
    }
  done
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$sysroot"; done
  # Links to absolute paths would lead out of the directory.
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath --canonicalize-missing --relative-to="$(dirname "$link")" "$sysroot$(readlink "$link")")" "$link"
  done
  rm -rf "$apt"
  touch "$sysroot/complete"
}

build_all() {
  cmake --preset arm64 >/dev/null
  # Results of older programs do not count.
  [[ $(ninja -C "$build" -n) == *"no work to do"* ]] || rm -rf "$results"
  "${with[@]}" cmake --build --preset arm64 -j "$jobs" -- --quiet
  [[ -e build/CMakeCache.txt ]] || cmake --preset release -DRAFFIA_BUILD_TORCH=OFF >/dev/null
  "${with[@]}" cmake --build build --target raffia_cli -j "$jobs" -- --quiet
  local found
  found=$(aarch64-linux-gnu-objdump -d --no-show-raw-insn "$build"/lib/*.so | grep -cE '\s(aes[demi]|sha1|sha256|pmull2?\s+v[0-9]+\.1q)' || true)
  ((found == 0)) || fail "the libraries have $found instructions that not every CPU with NEON has (AES, SHA or PMULL)"
}

# Programs start each other, and themselves again, so the kernel has to know what runs those for arm64. Where it does not, it is told so for
# the processes of this script alone (since Linux 6.7), or else until the script ends.
register=':raffia-arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
register+=':\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:'
binfmt=/proc/sys/fs/binfmt_misc
export QEMU_LD_PREFIX=$sysroot
emulated=()
find_loader() {
  "$build/bin/raffia" --version >/dev/null 2>&1 && return
  # shellcheck disable=SC2016  # expanded by the inner shell
  emulated=(unshare --user --map-root-user --mount bash -c
    'mount -t binfmt_misc binfmt_misc "$1" && printf %s "$2" >"$1/register" && shift 2 && exec "$@"' sh "$binfmt" "$register")
  "${emulated[@]}" "$build/bin/raffia" --version >/dev/null 2>&1 && return
  emulated=()
  [[ -e $binfmt/register ]] || mount -t binfmt_misc binfmt_misc "$binfmt" || true
  printf %s "$register" 2>/dev/null >"$binfmt/register" || fail "this kernel cannot be told how to run programs for arm64 ($binfmt); run as root"
  trap 'echo -1 >"$binfmt/raffia-arm64"' EXIT
  "$build/bin/raffia" --version >/dev/null || fail "$build/bin/raffia does not run in qemu"
}

run_tests() {
  local leave_out='' count first last name entry
  for entry in "${excluded[@]}"; do
    name=${entry%% *}
    echo "not run: $name: ${entry#* }"
    leave_out+="${leave_out:+|}^${name//./\\.}\$"
  done
  local selection=(--test-dir "$build" -E "${leave_out:-^$}" --no-tests=error)
  if [[ -n $only ]]; then
    "${with[@]}" "${emulated[@]}" ctest "${selection[@]}" -R "$only" -j "$jobs" --output-on-failure
    return
  fi
  count=$(ctest "${selection[@]}" -N | sed -n 's/^Total Tests: //p')
  mkdir -p "$results"
  for ((first = 1; first <= count; first += part_size)); do
    last=$((first + part_size - 1 < count ? first + part_size - 1 : count))
    name=$results/$first-$last
    [[ -e $name.xml ]] && continue
    local start=$SECONDS
    # Failures are counted at the end.
    "${with[@]}" "${emulated[@]}" ctest "${selection[@]}" -I "$first,$last" -j "$jobs" --output-on-failure \
      --output-junit "$name.partial" >"$name.log" 2>&1 || grep -E '^ +[0-9]+ - ' "$name.log" || true
    mv "$name.partial" "$name.xml"
    echo "tests $first to $last of $count: $((SECONDS - start)) s"
  done
}

compare_files() { "${emulated[@]}" tests/machines/sessions.py build/bin/raffia "$build/bin/raffia" | tee "$build/sessions.log"; }

# write_table: from the results into the document. Exit code 1: a test failed.
write_table() {
  local found status=0
  found=$(mktemp)
  "$build/bin/raffia" info --json >/dev/null 2>&1 || true
  "${emulated[@]}" "$build/bin/raffia" info --json >"$build/info.json"
  printf '%s\n' "${excluded[@]}" >"$build/excluded"
  scripts/arm64_table.py "$build" "$(qemu-aarch64 --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')" >"$found" || status=1
  fill docs/arm.md arm64 "$found"
  cat "$found"
  rm "$found"
  return $status
}

stage packages packages
stage libraries fill_sysroot
stage build build_all
find_loader
stage tests run_tests
if [[ -z $only ]]; then
  stage files compare_files
  write_table
fi
