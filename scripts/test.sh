#!/usr/bin/env bash
# Builds Raffia and runs its tests: scripts/test.sh [--all]
#   format    clang-format finds nothing to change
#   release   builds without a warning; the whole suite passes
# --all adds what has to pass before a change is merged:
#   asan      the suite without torch under AddressSanitizer and UndefinedBehaviorSanitizer (clang)
#   names     the naming rules of .clang-tidy on the sources that the last commits touched
#   fuzz      every fuzz target over its corpus and a bounded number of new inputs (same build as asan)
#   tsan      the tests in which threads meet, under ThreadSanitizer
#   hostile   damaged files, kills, full disks and odd names against the built commands (a short round)
# Exit status 0 only if every stage passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

all=false
case "${1-}" in
  "") ;;
  --all) all=true ;;
  *)
    echo "usage: scripts/test.sh [--all]" >&2
    exit 2
    ;;
esac

jobs=$(nproc)
fuzz_seconds=8 # per target

check_format() {
  git ls-files -z '*.h' '*.cc' | xargs -0 --no-run-if-empty clang-format-14 --dry-run -Werror
}

# build PRESET
build() {
  # A line per compiled file is for a terminal; a log gets only what went wrong.
  local quiet=()
  [[ -t 1 ]] || quiet=(-- --quiet)
  cmake --preset "$1" >/dev/null && cmake --build --preset "$1" -j "$jobs" "${quiet[@]}"
}

# suite PRESET: runs the tests. What failed is told again at the end, where people look.
suite() {
  local log
  log=$(mktemp)
  ctest --preset "$1" -j "$jobs" --output-log "$log"
  local status=$?
  ((status == 0)) || failures+=("$1: $log")
  return $status
}

fuzz_targets() {
  local target name corpus found
  found=$(mktemp -d)
  for target in build/asan/fuzz/*; do
    [[ -f $target && -x $target ]] || continue
    name=$(basename "$target")
    corpus=()
    [[ -d fuzz/corpus/$name ]] && corpus=("fuzz/corpus/$name")
    mkdir -p "$found/$name"
    "$target" -max_total_time="$fuzz_seconds" -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$found/" \
      "$found/$name" "${corpus[@]}" >"$found/log" 2>&1 || {
      tail -n 60 "$found/log"
      echo "fuzz: $name failed; the input is in $found" >&2
      return 1
    }
    echo "fuzz: $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log") inputs"
  done
  rm -rf "$found"
}

summary=()
failures=()
failed=0
# stage NAME COMMAND...: runs it, times it, remembers how it ended. Returns whether it passed.
stage() {
  local name=$1 start=$SECONDS verdict=passed
  shift
  echo "==== $name"
  "$@" || { verdict=FAILED && failed=1; }
  summary+=("$(printf '%-14s %-8s %5d s' "$name" "$verdict" $((SECONDS - start)))")
  echo "==== ${summary[-1]}"
  [[ $verdict == passed ]]
}

# tested PRESET: builds it and runs its tests, as two stages.
tested() {
  stage "$1 build" build "$1" && stage "$1 tests" suite "$1"
}

if $all; then
  echo "test.sh: everything; 25 to 55 minutes on two cores if nothing was built before, less if ccache has the objects"
else
  echo "test.sh: release build and all tests; 10 to 20 minutes on two cores if nothing was built before, less if ccache has the objects"
fi
stage setup scripts/setup.sh || exit 1
stage format check_format
tested release
if $all; then
  tested asan
  stage names scripts/names.py
  stage fuzz fuzz_targets
  tested tsan
  stage hostile tests/hostile/run.sh --short
fi

for failure in "${failures[@]}"; do
  echo "==== failures of ${failure%%: *}"
  sed -n '/tests passed/,$p' "${failure#*: }"
  # What each of them said.
  grep -A 30 -E '(\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception)' "${failure#*: }" | head -n 120
done
echo "==== summary ($((SECONDS / 60)) min $((SECONDS % 60)) s in all)"
printf '%s\n' "${summary[@]}"
exit $failed
