#!/usr/bin/env bash
# Everything that has to hold before a change is merged: scripts/test.sh [--quick]
#   format    clang-format finds nothing to change
#   release   builds without a warning; the whole suite passes
#   asan      the whole suite under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan      what starts threads under ThreadSanitizer: core, kernels, estimators
#   fuzz      every fuzz target over its corpus and a bounded number of new inputs
# --quick stops after release. Exit status 0 only if every stage passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

quick=false
case "${1-}" in
  "") ;;
  --quick) quick=true ;;
  *)
    echo "usage: scripts/test.sh [--quick]" >&2
    exit 2
    ;;
esac

jobs=$(nproc)
fuzz_runs=200000

check_format() {
  git ls-files -z '*.h' '*.cc' | xargs -0 --no-run-if-empty clang-format-14 --dry-run -Werror
}

# test_preset PRESET: configure, build and run the suite. What failed is told again at the end, where people look.
test_preset() {
  local log
  log=$(mktemp)
  cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" && ctest --preset "$1" -j "$jobs" --output-log "$log"
  local status=$?
  ((status == 0)) || failures+=("$1: $log")
  return $status
}

fuzz_targets() {
  cmake --preset fuzz && cmake --build --preset fuzz -j "$jobs" || return 1
  local target name corpus found
  found=$(mktemp -d)
  for target in build/fuzz/fuzz/*; do
    [[ -f $target && -x $target ]] || continue
    name=$(basename "$target")
    corpus=()
    [[ -d fuzz/corpus/$name ]] && corpus=("fuzz/corpus/$name")
    mkdir -p "$found/$name"
    "$target" -runs="$fuzz_runs" -max_total_time=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$found/" \
      "$found/$name" "${corpus[@]}" || {
      echo "fuzz: $name failed; the input is in $found" >&2
      return 1
    }
  done
  rm -rf "$found"
}

summary=()
failures=()
failed=0
# stage NAME COMMAND...: runs it, times it, remembers how it ended.
stage() {
  local name=$1 start=$SECONDS verdict=passed
  shift
  echo "==== $name"
  "$@" || { verdict=FAILED && failed=1; }
  summary+=("$(printf '%-10s %-8s %5d s' "$name" "$verdict" $((SECONDS - start)))")
}

scripts/setup.sh || exit 1
stage format check_format
stage release test_preset release
if ! $quick; then
  stage asan test_preset asan
  stage tsan test_preset tsan
  stage fuzz fuzz_targets
fi

for failure in "${failures[@]}"; do
  echo "==== failures of ${failure%%: *}"
  sed -n '/tests passed/,$p' "${failure#*: }"
  # What each of them said.
  grep -A 30 -E '(\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception)' "${failure#*: }" | head -n 120
done
echo "==== summary"
printf '%s\n' "${summary[@]}"
exit $failed
