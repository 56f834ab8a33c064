#!/usr/bin/env bash
# Stores two models in every type of weights, measures their loss on a text, and puts the table into docs/model-format.md:
#
#   scripts/quantize.sh STORIES260K TINYSTORIES WIKITEXT
#
# STORIES260K and TINYSTORIES are those of scripts/convert.sh; the last 5% of the text are read here too. WIKITEXT is a directory with WikiText-2
# as train.txt.xz and test.txt.xz: the default RFA-Gate model is trained on the first and measured on the second. It stays in out/quantize, and an
# interrupted training goes on. Needs a release build; training takes a few minutes, the rest one.
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "$0")/.."
source scripts/tables.sh
source scripts/experiments.sh
[[ $# == 3 ]] || usage
paths=()
for path in "$@"; do paths+=("$(cd "$invoked_from" && realpath "$path")"); done
stories=${paths[0]} text=${paths[1]} wikitext=${paths[2]}
require_raffia

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
case $text in *.xz) xz -dc "$text" ;; *) cat "$text" ;; esac >"$work/all.txt"
python3 - "$work" <<'CUT'
import sys
out = sys.argv[1]
text = open(f"{out}/all.txt", encoding="utf-8").read()
mark = "<|endoftext|>\n"
open(f"{out}/held.txt", "w", encoding="utf-8").write(text[text.index(mark, int(0.95 * len(text))) + len(mark):])
CUT
"$raffia" import llama2c "$stories/stories260K.bin" "$stories/tok512.bin" "$work/stories260K" >/dev/null 2>&1

trained=out/quantize/wikitext
if [[ -e $trained/trainer ]]; then
  "$raffia" train lm --out "$trained" --resume >&2
else
  mkdir -p out/quantize
  "$raffia" train lm --data "$wikitext/train.txt.xz" --out "$trained" --steps 1000 --checkpoint-every 100 --seed 1 >&2
fi

# measure NAME DIRECTORY TEXT: a report for each type.
measure() {
  for type in bf16 int8 int4; do
    echo "quantize.sh: $1, $type" >&2
    "$raffia" quantize "$2" "$work/$1-$type" --type $type --data "$3" --json >"$work/$1.$type.json" 2>/dev/null
  done
}
measure stories260K "$work/stories260K" "$work/held.txt"
measure wikitext "$trained" "$wikitext/test.txt.xz"
python3 - "$work" >"$work/table.md" <<'TABLE'
import json, sys
print("| model | type | bytes of the file | mean relative error of rows | nats per token | more than fp32 |\n|:---|:---|---:|---:|---:|---:|")
for model in ("stories260K", "wikitext"):
    reports = {name: json.load(open(f"{sys.argv[1]}/{model}.{name}.json")) for name in ("bf16", "int8", "int4")}
    first = reports["bf16"]
    print(f"| {model}, {first['loss_tokens']:,} tokens | `f32` | {first['bytes_before']:,} | 0 | {first['loss_before']:.4f} | |")
    for name, one in reports.items():
        print(f"| | `{name}` | {one['bytes']:,} | {one['row_error_mean']:.2e} | {one['loss']:.4f} | {one['loss'] - one['loss_before']:+.4f} |")
TABLE
fill docs/model-format.md weight_types "$work/table.md"
