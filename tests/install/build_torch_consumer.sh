#!/usr/bin/env bash
# build_torch_consumer.sh SOURCE_DIR WORK_DIR: builds the consumer of raffia::torch through find_package and through pkg-config, and
# runs it.
set -euo pipefail
source_dir=$1
work_dir=$2

rm -rf "$work_dir"
mkdir -p "$work_dir"

"$CMAKE" -G Ninja -S "$source_dir" -B "$work_dir/find_package" -DCMAKE_PREFIX_PATH="$PREFIX"
"$CMAKE" --build "$work_dir/find_package"
"$work_dir/find_package/tensors"

export PKG_CONFIG_PATH=$LIBRARY_DIR/pkgconfig
# shellcheck disable=SC2046,SC2086  # flags are words
"$CXX" -std=c++20 $CXXFLAGS "$source_dir/tensors.cc" $($PKG_CONFIG --cflags --libs raffia_torch) -Wl,-rpath,"$LIBRARY_DIR" -o "$work_dir/tensors"
"$work_dir/tensors"
