#!/usr/bin/env bash
# Runs the experiments of docs/convert.md and puts their tables there: softmax attention of a pretrained model is swapped, then finetuned.
#
#   scripts/convert.sh [--jobs N] [--steps N] [--out DIR] STORIES260K TINYSTORIES
#
# STORIES260K is a directory with stories260K.bin and tok512.bin (llama2.c), TINYSTORIES a text whose stories have a line <|endoftext|> between them (.xz is
# read). The last 5% of the text is never learned from, and all losses are of it. Commands take one thread each, --jobs of them at once. A run that is
# complete is skipped and one that was interrupted goes on.
# --steps other than the default is for trying the script out: give it an --out of its own.
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "$0")/.."
wanted="  "
source scripts/tables.sh
source scripts/experiments.sh

jobs=1 steps=400 out=out/convert
read_flags "$@"
[[ ${#rest[@]} == 2 ]] || usage
stories=$(cd "$invoked_from" && realpath "${rest[0]}") text=$(cd "$invoked_from" && realpath "${rest[1]}")
require_raffia
mkdir -p "$out"

# Learned from and held out, cut between two stories.
if [[ ! -f $out/held.txt ]]; then
  case $text in *.xz) xz -dc "$text" ;; *) cat "$text" ;; esac >"$out/all.txt"
  python3 - "$out" <<'CUT'
import sys
out = sys.argv[1]
text = open(f"{out}/all.txt", encoding="utf-8").read()
mark = "<|endoftext|>\n"
at = text.index(mark, int(0.95 * len(text))) + len(mark)
open(f"{out}/train.txt", "w", encoding="utf-8").write(text[:at])
open(f"{out}/held.txt", "w", encoding="utf-8").write(text[at:])
CUT
fi

# score MODEL FILE: nats per token of the held-out stories.
score() {
  [[ -f $2 ]] || "$raffia" eval "$1" --data "$out/held.txt" --segments 256 --memory reset --threads 1 --json >"$2.part"
  [[ -f $2 ]] || mv "$2.part" "$2"
}

# swap NAME ARGUMENTS...: the softmax model with another attention, and its loss.
swap() {
  local name=$1
  shift
  if [[ ! -f $out/$name.swapped.json ]]; then
    echo "$name: raffia convert $*" >&2
    "$raffia" convert "$out/softmax" --force --threads 1 --json "$@" "$out/$name" >"$out/$name.fit.json"
  fi
  score "$out/$name" "$out/$name.swapped.json"
}

# finetune NAME: the same steps for all, and the loss at the end of them.
finetune() {
  local name=$1 resume=()
  if [[ ! -f $out/$name.summary.json ]]; then
    [[ -d $out/$name.tuned/trainer ]] && resume=(--resume)
    "$raffia" train lm --init "$out/$name" --data "$out/train.txt" --valid "$out/held.txt" --out "$out/$name.tuned" --segment 256 --batch 4 --no-stateful \
      --lr 3e-4 --steps "$steps" --eval-every "$steps" --seed 1 --threads 1 --json "${resume[@]}" >"$out/$name.summary.json.part"
    mv "$out/$name.summary.json.part" "$out/$name.summary.json"
  fi
}

# Not more than --jobs at once; ends the script where one fails.
in_turn() {
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  "$@" &
}
swap_and_finetune() {
  swap "$@"
  finetune "$1"
}

[[ -f $out/softmax/model.safetensors ]] || "$raffia" import llama2c "$stories/stories260K.bin" "$stories/tok512.bin" "$out/softmax"
score "$out/softmax" "$out/softmax.swapped.json"
in_turn finetune softmax

data=(--data "$out/train.txt" --seed 1)
for kind in rfa_gate rfa hybrid eva; do
  in_turn swap_and_finetune "$kind" --to "$kind" "${data[@]}"
done

# Choices, by what the loss is right after the swap.
for map in relu trig positive; do
  in_turn swap "new-$map" --to "rfa_gate:map=$map" --seed 1
  in_turn swap "searched-$map" --to "rfa_gate:map=$map" "${data[@]}" --fit-steps 0
  [[ $map == relu ]] || in_turn swap "fitted-$map" --to "rfa_gate:map=$map" "${data[@]}"
done
in_turn swap no-positions --to rfa_gate "${data[@]}" --no-positions
in_turn swap half --to "rfa_gate;softmax;rfa_gate;softmax;rfa_gate" "${data[@]}"
while (($(jobs -rp | wc -l) > 0)); do wait -n; done

python3 scripts/convert_tables.py "$out"
for name in finetuned choices; do fill docs/convert.md "$name" "$out/$name.md"; done
