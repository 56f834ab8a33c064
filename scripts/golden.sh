#!/usr/bin/env bash
# Writes the golden models of tests/golden, with what the trainer answers. Run it when a model gains a part, and look at what changed.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release
cmake --build build --target raffia_golden
build/tests/raffia_golden tests/golden
