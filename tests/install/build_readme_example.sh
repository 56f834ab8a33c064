#!/usr/bin/env bash
# build_readme_example.sh SOURCE_DIR WORK_DIR: the C++ block of README.md is examples/attention.cc, compiles, and runs.
set -euo pipefail
source_dir=$1
work_dir=$2

rm -rf "$work_dir"
mkdir -p "$work_dir"
cd "$work_dir"

awk '/^```cpp$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source_dir/README.md" >example.cc
[[ -s example.cc ]] || { echo "README.md has no \`\`\`cpp block" >&2; exit 1; }
diff -u "$source_dir/examples/attention.cc" example.cc

export PKG_CONFIG_PATH=$LIBRARY_DIR/pkgconfig
# shellcheck disable=SC2046,SC2086  # flags are words
"$CXX" -std=c++20 -O2 -Wall -Wextra $CXXFLAGS example.cc $($PKG_CONFIG --cflags --libs raffia) -Wl,-rpath,"$LIBRARY_DIR" -o example
./example
[[ -s chat.state ]] || { echo "the example saved no state" >&2; exit 1; }
