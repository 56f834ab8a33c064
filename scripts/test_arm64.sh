#!/usr/bin/env bash
# Builds Raffia for 64-bit Arm by a cross compiler, and runs the tests without torch in qemu, NEON against the references in double:
#   scripts/test_arm64.sh [--jobs N] [--tests REGEX] [--with "COMMAND"]
# --jobs:  compilers and tests at a time; as many as there are cores by default.
# --tests: runs only tests with such names, and leaves the document alone.
# --with:  a command that starts the builds and each part of the tests, such as "nice -n 10".
# Five stages: packages, libraries of arm64 (in build/arm64-sysroot), build (in build/arm64), tests, files compared with those of the build
# for this machine (in build). After an interruption it continues where it stopped. Results and logs of the tests are in build/arm64/test-results.last.
# The summary goes into docs/arm.md. For Debian 12 on x86; needs root. Takes about half an hour on two cores.
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
excluded=(
  "Text.FileThatDoesNotFitIntoMemoryIsRefusedByName qemu-user does not limit the memory of a program (RLIMIT_AS)"
  "Text.CompressedFileThatDoesNotFitIntoMemoryIsRefusedByName qemu-user does not limit the memory of a program (RLIMIT_AS)"
)

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
  "${with[@]}" cmake --build --preset arm64 -j "$jobs" -- --quiet
  # Results of older programs do not count.
  if [[ -e $results && $(find "$build"/{bin,lib,tests} -maxdepth 1 -type f -newer "$results/begun" -print -quit) ]]; then rm -rf "$results"; fi
  [[ -e build/CMakeCache.txt ]] || cmake --preset release -DRAFFIA_BUILD_TORCH=OFF >/dev/null
  "${with[@]}" cmake --build build --target raffia_cli -j "$jobs" -- --quiet
  local found
  found=$(aarch64-linux-gnu-objdump -d --no-show-raw-insn "$build"/lib/*.so | grep -cE '\s(aes[demi]|sha1|sha256|pmull2?\s+v[0-9]+\.1q)' || true)
  ((found == 0)) || fail "the libraries have $found instructions that not every CPU with NEON has (AES, SHA or PMULL)"
}

# Programs start each other, and themselves again, so the kernel has to know what runs those for arm64. Where it does not, it is told so in a
# namespace, for the processes of this script alone (since Linux 6.7), or else until the script ends.
register=':raffia-arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
register+=':\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:'
binfmt=/proc/sys/fs/binfmt_misc
export QEMU_LD_PREFIX=$sysroot
emulated=()

# runs_emulated: programs for arm64 do, as things are.
runs_emulated() { "${emulated[@]}" "$build/bin/raffia" --version >/dev/null 2>&1; }

# A namespace with the same users, which a process holds open.
in_namespace() {
  unshare --user --mount sleep infinity &
  local holder=$!
  # shellcheck disable=SC2064  # this holder
  trap "kill $holder" EXIT
  while [[ $(readlink "/proc/$holder/ns/user") == "$(readlink /proc/self/ns/user)" ]]; do sleep 0.1; done
  echo "0 0 4294967295" >"/proc/$holder/uid_map"
  echo "0 0 4294967295" >"/proc/$holder/gid_map"
  emulated=(nsenter --target "$holder" --user --mount)
  # shellcheck disable=SC2016  # expanded by the inner shell
  "${emulated[@]}" bash -c 'mount -t binfmt_misc binfmt_misc "$1" && printf %s "$2" >"$1/register"' sh "$binfmt" "$register"
}

find_loader() {
  runs_emulated && return
  [[ $(id -u) -eq 0 ]] || fail "this kernel does not know how to run programs for arm64 ($binfmt); run as root, who can tell it"
  if in_namespace 2>/dev/null && runs_emulated; then return; fi
  emulated=()
  [[ -e $binfmt/register ]] || mount -t binfmt_misc binfmt_misc "$binfmt"
  trap 'echo -1 >"$binfmt/raffia-arm64"' EXIT
  printf %s "$register" >"$binfmt/register"
  runs_emulated || fail "$build/bin/raffia does not run in qemu"
}

# is_excluded NAME
is_excluded() {
  local entry
  for entry in "${excluded[@]}"; do [[ ${entry%% *} == "$1" ]] && return; done
  return 1
}

# run_part FIRST LAST: the tests of these numbers, unless they ran before.
run_part() {
  local name=$results/$1-$2 start=$SECONDS number numbers=0,0,0
  [[ -e $name.xml ]] && return
  for ((number = $1; number <= $2; ++number)); do
    is_excluded "${names[number - 1]}" || numbers+=,$number
  done
  # Failures are counted at the end.
  "${with[@]}" "${emulated[@]}" ctest --test-dir "$build" -I "$numbers" -j "$jobs" --output-on-failure \
    --output-junit "$name.partial" >"$name.log" 2>&1 || grep -P '^\s+\d+ - ' "$name.log" || true
  mv "$name.partial" "$name.xml"
  echo "tests $1 to $2 of ${#names[@]}: $((SECONDS - start)) s"
}

run_tests() {
  if [[ -n $only ]]; then
    "${with[@]}" "${emulated[@]}" ctest --test-dir "$build" -R "$only" -j "$jobs" --output-on-failure --no-tests=error
    return
  fi
  local entry first
  for entry in "${excluded[@]}"; do echo "not run: ${entry%% *}: ${entry#* }"; done
  mapfile -t names < <(ctest --test-dir "$build" -N | sed -n 's/^ *Test *#[0-9]*: //p')
  if [[ ! -e $results ]]; then mkdir -p "$results" && touch "$results/begun"; fi
  for ((first = 1; first <= ${#names[@]}; first += part_size)); do
    run_part "$first" $((first + part_size - 1 < ${#names[@]} ? first + part_size - 1 : ${#names[@]}))
  done
}

# What differs is told in the table.
compare_files() {
  "${with[@]}" "${emulated[@]}" "$PWD/tests/machines/sessions.py" "$PWD/build/bin/raffia" "$build/bin/raffia" 2>&1 | tee "$build/sessions.log" || true
}

# write_table: from the results into the document. Exit code 1: a test failed, or files differ.
write_table() {
  local found status=0
  found=$(mktemp)
  "${emulated[@]}" "$build/bin/raffia" info --json >"$build/info.json"
  printf '%s\n' "${excluded[@]}" >"$build/excluded"
  scripts/arm64_table.py "$build" "$(qemu-aarch64 --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')" >"$found" || status=1
  fill docs/arm.md arm64 "$found"
  cat "$found"
  rm "$found"
  rm -rf "$results.last"
  mv "$results" "$results.last" # the next run begins anew
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
