#!/usr/bin/env bash
# headers.sh COMPILER INCLUDE_DIR [FLAG...] -- HEADER...: every header compiles as the only include of a source, without warnings.
set -euo pipefail
compiler=$1
include_dir=$2
shift 2
flags=()
while [[ $1 != -- ]]; do
  flags+=("$1")
  shift
done
shift
(($# > 0)) || { echo "no headers are given" >&2; exit 1; }

code=0
for header; do
  echo "#include \"raffia/$header\"" |
    "$compiler" -x c++ -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I"$include_dir" "${flags[@]}" - ||
    { echo "raffia/$header does not compile by itself with $compiler" >&2; code=1; }
done
exit $code
