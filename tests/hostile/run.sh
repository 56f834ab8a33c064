#!/usr/bin/env bash
# A hostile round against the built commands: tests/hostile/run.sh [--short] [--bin DIR] [--part NAME] [--seed N] [--case N]
# Damaged files, kills, full disks, closed streams and hostile names. --short is the part of it that every merge runs (below 90 s on two
# cores). See README.md beside this script.
exec python3 -B "$(dirname "${BASH_SOURCE[0]}")/hostile.py" "$@"
