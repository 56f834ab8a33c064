#!/usr/bin/env bash
# Measures every table and plot of docs/performance.md and puts them there: scripts/bench.sh [TABLE...], all of them by default, about
# fifteen minutes on two cores. Wants a quiet machine and a release build.
set -euo pipefail
cd "$(dirname "$0")/.."
document=docs/performance.md
raffia=build/bin/raffia
wanted=" $* "

# table NAME ARGUMENTS...: the command and what it prints, between the marks of that name in the document.
table() {
  local name=$1 found
  shift
  [[ $wanted == "  " || $wanted == *" $name "* ]] || return 0
  echo "$name: raffia $*" >&2
  found=$(mktemp)
  {
    printf '```sh\nraffia %s\n```\n\n' "$*"
    "$raffia" "$@"
  } >"$found"
  awk -v name="$name" -v found="$found" '
    $0 == "<!-- end " name " -->" { inside = 0 }
    !inside { print }
    $0 == "<!-- table " name " -->" { inside = 1; while ((getline line < found) > 0) print line }
  ' "$document" >"$found.document"
  mv "$found.document" "$document"
  rm "$found"
}

mkdir -p docs/img
table machine info
table forward bench attention --causal --ops softmax,rfa,rfa_gate --input features,qk --lengths 512,2048,8192 --threads 1,2 --repeats 15
table backward bench attention --causal --ops softmax,rfa,rfa_gate --passes forward,backward,forward+backward --input features,qk \
  --lengths 512,2048,8192 --threads 1 --repeats 9
table bidirectional bench attention --ops softmax,rfa --input features,qk --lengths 2048,8192 --threads 1,2 --repeats 9
table estimators bench attention --ops softmax,rfa,lara,eva --passes forward,backward --lengths 2048,4096,8192 --threads 1 --repeats 9
table estimators_causal bench attention --causal --ops softmax,rfa,rfa_gate,hybrid,lara,eva --input features,qk --lengths 2048,4096,8192 \
  --threads 1 --repeats 9
table estimators_backward bench attention --causal --ops softmax,rfa_gate,hybrid,lara,eva --passes backward --lengths 2048,4096,8192 --threads 1 \
  --repeats 7
table segments bench attention --causal --ops rfa_gate --no-softmax --heads 1 --input features,qk --lengths 65536 --segment -1,0 \
  --threads 1,2 --repeats 15
table decode bench decode --ops softmax,rfa_gate --input features,qk --lengths 512,2048,8192,32768,131072 --threads 1 --repeats 15
table estimators_decode bench decode --ops softmax,rfa_gate,hybrid,lara,eva --input features,qk --lengths 512,2048,8192,32768 --threads 1 \
  --repeats 15
table crossover bench attention --causal --ops softmax,rfa,rfa_gate --lengths 64,128,256,512,1024,2048,4096,8192 --threads 1 --repeats 9 \
  --plot docs/img/crossover
