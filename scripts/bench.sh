#!/usr/bin/env bash
# Every table and plot of docs/performance.md: scripts/bench.sh [DIR], about ten minutes on two cores. Writes DIR (out/bench by default),
# one Markdown file per table, and docs/img/crossover.svg and .png. Wants a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-out/bench}
mkdir -p "$dir" docs/img
raffia=build/bin/raffia

# table NAME ARGUMENTS...: the command, then what it prints.
table() {
  local name=$1
  shift
  echo "$name: raffia $*" >&2
  {
    printf '```sh\nraffia %s\n```\n\n' "$*"
    "$raffia" "$@"
  } >"$dir/$name.md"
}

"$raffia" info >"$dir/machine.txt"
table forward bench attention --causal --ops softmax,rfa,rfa_gate --input features,qk --lengths 512,2048,8192 --threads 1,2 --repeats 15
table backward bench attention --causal --ops softmax,rfa,rfa_gate --passes forward,backward,forward+backward --input features,qk \
  --lengths 512,2048,8192 --threads 1 --repeats 9
table bidirectional bench attention --ops softmax,rfa --input features,qk --lengths 2048,8192 --threads 1,2 --repeats 9
table segments bench attention --causal --ops rfa_gate --no-softmax --heads 1 --input features,qk --lengths 65536 --segment -1,0 \
  --threads 1,2 --repeats 15
table decode bench decode --ops softmax,rfa_gate --input features,qk --lengths 512,2048,8192,32768,131072 --threads 1 --repeats 15
table crossover bench attention --causal --ops softmax,rfa,rfa_gate --lengths 64,128,256,512,1024,2048,4096,8192 --threads 1 --repeats 9 \
  --plot docs/img/crossover
