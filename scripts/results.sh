#!/usr/bin/env bash
# Runs the experiments of docs/results.md and puts their tables and plots there.
#
#   scripts/results.sh [--jobs N] [--steps N] [--out DIR] [--report] WIKITEXT [EXPERIMENT...]
#
# WIKITEXT is a directory with train.txt, valid.txt and test.txt of WikiText-2 (or wiki.train.tokens and so on; .gz and .xz are read).
# Experiments: wikitext, recall; both by default. Runs take one thread each, --jobs of them at once. A run that is complete is skipped and one that was
# interrupted goes on, so the script may be stopped and started again at any time. --report only makes tables of what is complete.
# --steps other than the default is for trying the script out: give it an --out of its own.
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "$0")/.."

source scripts/tables.sh
source scripts/experiments.sh

jobs=1 steps="" out=out/results report=false
read_flags "$@"
[[ -n ${rest[0]-} ]] || usage
wikitext=$(cd "$invoked_from" && realpath "${rest[0]}")
experiments=" ${rest[*]:1} "
[[ $experiments == "  " ]] && experiments=" wikitext recall "
for experiment in $experiments; do [[ $experiment == wikitext || $experiment == recall ]] || usage; done
require_raffia

# The file of a part of WikiText-2, under any of the names that it has.
part_of_wikitext() {
  local name ending
  for name in "$1.txt" "wiki.$1.tokens" "wiki.$1.raw"; do
    for ending in "" .xz .gz; do
      if [[ -f $wikitext/$name$ending ]]; then
        echo "$wikitext/$name$ending"
        return
      fi
    done
  done
  echo "results.sh: $wikitext holds no $1.txt, wiki.$1.tokens or wiki.$1.raw (nor .gz, .xz)" >&2
  return 1
}

# train NAME ARGUMENTS...: one run in $out/NAME. summary.json appears there when it is complete.
train() {
  local directory=$out/$1
  shift
  [[ ! -f $directory/summary.json ]] || return 0
  mkdir -p "$directory"
  local going_on=()
  [[ ! -f $directory/model/trainer/options.json ]] || going_on=(--resume)
  if "$raffia" train "$@" --out "$directory/model" --threads 1 --json "${going_on[@]}" >"$directory/summary.part" 2>>"$directory/messages.txt"; then
    mv "$directory/summary.part" "$directory/summary.json"
  else
    echo "results.sh: $directory failed: $(tail -n 1 "$directory/messages.txt")" >&2
    return 1
  fi
}

# evaluate NAME DATA SEGMENTS: the scores of a run on a text, in $out/NAME/test.json.
evaluate() {
  local directory=$out/$1
  [[ ! -f $directory/test.json ]] || return 0
  "$raffia" eval "$directory/model" --data "$2" --segments "$3" --threads 1 --json >"$directory/test.part" 2>>"$directory/messages.txt"
  mv "$directory/test.part" "$directory/test.json"
}

# start COMMAND...: in the background, as soon as fewer than $jobs are running.
failed=0
start() {
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || failed=1; done
  "$@" &
}
finish() {
  while (($(jobs -p | wc -l) > 0)); do wait -n || failed=1; done
}

# Models of the WikiText experiment: name and flags. The window is that of the hybrid, without its folded past.
models=(
  "softmax-learned --estimator softmax --positions learned --no-stateful"
  "softmax-rotary --estimator softmax --positions rotary --no-stateful"
  "rfa --estimator rfa:samples=32 --positions none --no-stateful"
  "rfa_gate --estimator rfa_gate:samples=32 --positions none --no-stateful"
  "rfa_gate-stateful --estimator rfa_gate:samples=32 --positions none --stateful"
  "hybrid --estimator hybrid:samples=32,window=32 --positions rotary --no-stateful"
  "window --estimator window:window=32,before=1 --positions rotary --no-stateful"
  "eva --estimator eva:window=64,chunk=8 --positions rotary --no-stateful"
)
rates=(1.5e-3 3e-3 6e-3)

# train_lm NAME RATE STEPS FLAGS...: a run that is evaluated three times, or once if it is a third as long.
train_lm() {
  local name=$1 rate=$2 steps=$3
  shift 3
  train "wikitext/$name" lm --data "$data" --valid "$valid" "$@" --lr "$rate" --tokenizer sp:2000 --layers 3 --width 128 --heads 4 \
    --ffn 512 --batch 2 --segment 256 --steps "$steps" --eval-every "$third" --checkpoint-every "$third" --keep 1 --seed 1 --no-plot
}

# The learning rate is chosen on the validation text after a third of the steps; the test text is read by the whole run alone.
run_wikitext() {
  local data valid test model name rate third=$((${steps:-2700} / 3))
  data=$(part_of_wikitext train)
  valid=$(part_of_wikitext valid)
  test=$(part_of_wikitext test)
  for model in "${models[@]}"; do
    for rate in "${rates[@]}"; do
      # shellcheck disable=SC2086 # flags are words
      start train_lm "${model%% *}/sweep-$rate" "$rate" "$third" ${model#* }
    done
  done
  finish
  for model in "${models[@]}"; do
    rate=$(python3 scripts/results_tables.py best "$out/wikitext/${model%% *}") || continue
    # shellcheck disable=SC2086
    start train_lm "${model%% *}/final" "${rate#sweep-}" $((3 * third)) ${model#* }
  done
  finish
  for model in "${models[@]}"; do
    name=${model%% *}
    local segments=256,1024,4096
    [[ $name != softmax-learned ]] || segments=256
    [[ ! -f $out/wikitext/$name/final/summary.json ]] || start evaluate "wikitext/$name/final" "$test" "$segments"
  done
  finish
}

# Multi-query associative recall: what the far past is worth. A window sees no further than 63 tokens back in a layer.
recall_models=(
  "rfa_gate --estimator rfa_gate --positions none --span-min 16 --span-max 1024"
  "hybrid --estimator hybrid:window=32 --positions rotary --span-min 16 --span-max 1024"
  "window --estimator window:window=32,before=1 --positions rotary"
  "softmax-rotary --estimator softmax --positions rotary"
  "eva --estimator eva:window=32,chunk=8 --positions rotary"
)

# Each with two learning rates: the better one, on sequences that training never sees, counts.
run_recall() {
  local model rate length=${steps:-700}
  for model in "${recall_models[@]}"; do
    for rate in 3e-3 1e-2; do
      # shellcheck disable=SC2086
      start train "recall/${model%% *}/$rate" recall ${model#* } --layers 2 --width 64 --heads 2 --conv 4 --pool 0 --batch 32 --segment 128 \
        --pairs 8 --queries 8 --alphabet 64 --distances 16,24,32,48,64,96,112 --eval-distances 16,32,64,128,256,512,1024,2048,4096 \
        --lr "$rate" --steps "$length" --eval-every "$length" --seed 1 --no-plot
    done
  done
  finish
}

if ! $report; then
  for experiment in $experiments; do "run_$experiment"; done
fi

mkdir -p docs/img
found=$(mktemp)
for experiment in $experiments; do
  if python3 scripts/results_tables.py "$experiment" "$out/$experiment" >"$found"; then
    fill docs/results.md "$experiment" "$found"
  else
    failed=1
  fi
done
rm "$found"
if [[ $experiments == *" recall "* ]] && command -v gnuplot >/dev/null; then
  python3 scripts/results_tables.py recall-plot "$out/recall" docs/img/recall | gnuplot
fi
if [[ $experiments == *" wikitext "* ]] && command -v gnuplot >/dev/null; then
  python3 scripts/results_tables.py curves "$out/wikitext" docs/img/learning | gnuplot
fi
exit $failed
