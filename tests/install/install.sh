#!/usr/bin/env bash
# install.sh BUILD_DIR: installs into a fresh $PREFIX and checks that what users look for is there.
set -euo pipefail
build_dir=$1

rm -rf "$PREFIX"
"$CMAKE" --install "$build_dir" --prefix "$PREFIX"
for file in "$PREFIX"/include/raffia/{raffia,attention,features,state,version}.h "$LIBRARY_DIR"/cmake/raffia/raffiaConfig.cmake \
  "$LIBRARY_DIR"/pkgconfig/{raffia,raffia_runtime}.pc "$DOC_DIR"/{LICENSE,README.md,docs/cli.md}; do
  [[ -f $file ]] || { echo "not installed: $file" >&2; exit 1; }
done
if [[ -e $LIBRARY_DIR/libraffia_torch.so && ! -f $LIBRARY_DIR/pkgconfig/raffia_torch.pc ]]; then
  echo "not installed: $LIBRARY_DIR/pkgconfig/raffia_torch.pc" >&2
  exit 1
fi
# Where commands are built, the installed one runs from PATH and finds its libraries.
if [[ -x $build_dir/bin/raffia ]]; then
  (cd / && PATH=$PREFIX/bin:$PATH raffia --version)
fi
