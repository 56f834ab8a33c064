#!/usr/bin/env bash
# build_consumer.sh SOURCE_DIR WORK_DIR GOLDEN_DIR: builds the consumers through find_package and through pkg-config, and runs them.
set -euo pipefail
source_dir=$1
work_dir=$2
model=$3/image-rfa
writer=$work_dir/writer # a language model with a vocabulary

rm -rf "$work_dir"
mkdir -p "$writer"
cp "$3"/lm-gate/{config.json,model.safetensors} "$writer"
printf '%s' '{"kind": "char", "version": 1, "characters": "\n abcdefghi\u00e9"}' >"$writer/tokenizer.json"

"$CMAKE" -G Ninja -S "$source_dir" -B "$work_dir/find_package" -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_BUILD_TYPE=Release
"$CMAKE" --build "$work_dir/find_package"
"$work_dir/find_package/decode"
"$work_dir/find_package/sizes" "$model"
"$work_dir/find_package/continue" "$writer" 'a bee'

# compile NAME PACKAGE
compile() {
  # shellcheck disable=SC2046,SC2086  # flags are words
  "$CXX" -std=c++20 -O2 $CXXFLAGS "$source_dir/$1.cc" $($PKG_CONFIG --cflags --libs "$2") -Wl,-rpath,"$LIBRARY_DIR" -o "$work_dir/$1"
}
export PKG_CONFIG_PATH=$LIBRARY_DIR/pkgconfig
compile decode raffia
"$work_dir/decode"
compile sizes raffia_runtime
"$work_dir/sizes" "$model"
compile continue raffia_runtime
"$work_dir/continue" "$writer" 'a bee'
