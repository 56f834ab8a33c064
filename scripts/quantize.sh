#!/usr/bin/env bash
# Stores a pretrained model in every type of weights, measures its loss on a text, and puts the table into docs/model-format.md:
#
#   scripts/quantize.sh STORIES260K TINYSTORIES
#
# The arguments are those of scripts/convert.sh; the last 5% of the text are read here too. Needs a release build (torch is not needed), about
# a minute.
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "$0")/.."
source scripts/tables.sh
source scripts/experiments.sh
[[ $# == 2 ]] || usage
stories=$(cd "$invoked_from" && realpath "$1") text=$(cd "$invoked_from" && realpath "$2")
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

"$raffia" import llama2c "$stories/stories260K.bin" "$stories/tok512.bin" "$work/f32" >/dev/null 2>&1
for type in bf16 int8 int4; do
  echo "quantize.sh: $type" >&2
  "$raffia" quantize "$work/f32" "$work/$type" --type $type --data "$work/held.txt" --json >"$work/$type.json" 2>/dev/null
done
python3 - "$work" >"$work/table.md" <<'TABLE'
import json, sys
reports = {name: json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("bf16", "int8", "int4")}
first = reports["bf16"]
print("| type | bytes of the file | mean relative error of rows | nats per token | more than fp32 |\n|---|---:|---:|---:|---:|")
print(f"| `f32` | {first['bytes_before']:,} | 0 | {first['loss_before']:.4f} | |")
for name, one in reports.items():
    print(f"| `{name}` | {one['bytes']:,} | {one['row_error_mean']:.2e} | {one['loss']:.4f} | {one['loss'] - one['loss_before']:+.4f} |")
print(f"\n{first['loss_tokens']:,} predicted tokens.")
TABLE
fill docs/model-format.md weight_types "$work/table.md"
