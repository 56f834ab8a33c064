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

jobs=1 steps="" out=out/results report=false
usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
}
while [[ ${1-} == --* ]]; do
  case $1 in
    --jobs | --steps | --out)
      [[ -n ${2-} ]] || usage
      declare "${1#--}=$2"
      shift 2
      ;;
    --report) report=true && shift ;;
    *) usage ;;
  esac
done
[[ $jobs =~ ^[1-9][0-9]*$ && $steps =~ ^([1-9][0-9]*)?$ && -n ${1-} ]] || usage
wikitext=$(cd "$invoked_from" && realpath "$1")
shift
experiments=" ${*:-wikitext recall} "
for experiment in $experiments; do [[ $experiment == wikitext || $experiment == recall ]] || usage; done

raffia=build/bin/raffia
[[ -x $raffia ]] || {
  echo "results.sh: $raffia is not there: cmake --preset release && cmake --build --preset release" >&2
  exit 1
}

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
  "rfa --estimator rfa:samples=32 --positions rotary --no-stateful"
  "rfa_gate --estimator rfa_gate:samples=32 --positions none --no-stateful"
  "rfa_gate-stateful --estimator rfa_gate:samples=32 --positions none --stateful"
  "hybrid --estimator hybrid:samples=32,window=32 --positions rotary --no-stateful"
  "window --estimator window:window=32,before=1 --positions rotary --no-stateful"
  "eva --estimator eva:window=64,chunk=8 --positions rotary --no-stateful"
)
rates=(1.5e-3 3e-3 6e-3)

run_wikitext() {
  local data valid test model name rate
  data=$(part_of_wikitext train)
  valid=$(part_of_wikitext valid)
  test=$(part_of_wikitext test)
  for rate in "${rates[@]}"; do
    for model in "${models[@]}"; do
      name=${model%% *}
      # shellcheck disable=SC2086 # flags are words
      start train "wikitext/$name/$rate" lm --data "$data" --valid "$valid" ${model#* } --lr "$rate" --tokenizer sp:2000 --layers 3 \
        --width 128 --heads 4 --ffn 512 --batch 2 --segment 256 --steps "${steps:-2700}" --seed 1 --no-plot
    done
  done
  finish
  # The learning rate is chosen on the validation text; the test text is read by the chosen one alone.
  for model in "${models[@]}"; do
    name=${model%% *}
    rate=$(python3 scripts/results_tables.py best "$out/wikitext/$name") || continue
    local segments=256,512,1024
    [[ $name != softmax-learned ]] || segments=256
    start evaluate "wikitext/$name/$rate" "$test" "$segments"
  done
  finish
}

# Multi-query associative recall: what the far past is worth. A window sees no further than 63 tokens back in a layer.
recall_models=(
  "softmax-rotary --estimator softmax --positions rotary"
  "rfa_gate --estimator rfa_gate --positions none --conv 4"
  "hybrid --estimator hybrid:window=32 --positions rotary --conv 4"
  "window --estimator window:window=32,before=1 --positions rotary --conv 4"
  "eva --estimator eva:window=32,chunk=8 --positions rotary --conv 4"
)

run_recall() {
  local model
  for model in "${recall_models[@]}"; do
    # shellcheck disable=SC2086
    start train "recall/${model%% *}" recall ${model#* } --layers 2 --width 128 --heads 2 --batch 16 --segment 512 --pairs 16 \
      --distances 16,64,256 --lr 1e-3 --steps "${steps:-3000}" --seed 1 --no-plot
  done
  finish
}

if ! $report; then
  for experiment in $experiments; do "run_$experiment"; done
fi

source scripts/tables.sh
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
if [[ $experiments == *" wikitext "* ]] && command -v gnuplot >/dev/null; then
  python3 scripts/results_tables.py curves "$out/wikitext" docs/img/learning | gnuplot
fi
exit $failed
