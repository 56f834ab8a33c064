#!/usr/bin/env bash
# build_consumer.sh SOURCE_DIR WORK_DIR: builds the consumer through find_package and through pkg-config, and runs both.
set -euo pipefail
source_dir=$1
work_dir=$2

rm -rf "$work_dir"
mkdir -p "$work_dir"

"$CMAKE" -G Ninja -S "$source_dir" -B "$work_dir/find_package" -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_BUILD_TYPE=Release
"$CMAKE" --build "$work_dir/find_package"
"$work_dir/find_package/decode"

export PKG_CONFIG_PATH=$LIBRARY_DIR/pkgconfig
# shellcheck disable=SC2046,SC2086  # flags are words
"$CXX" -std=c++20 -O2 $CXXFLAGS "$source_dir/decode.cc" $($PKG_CONFIG --cflags --libs raffia) -Wl,-rpath,"$LIBRARY_DIR" \
  -o "$work_dir/decode"
"$work_dir/decode"
