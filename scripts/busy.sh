#!/usr/bin/env bash
# How fast training is while every core also runs another process, against an idle machine: scripts/busy.sh
# Trains the same small model for 60 steps each: idle; busy, with as many threads as the command chooses; busy with a thread per core; and the
# same with threads that spin while they wait (OpenMP's default).
# Needs a release build. Puts the table into docs/training.md; a few minutes on two cores. Nothing else should run.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/tables.sh

work=$(mktemp -d)
others=()
clean_up() {
  ((${#others[@]} == 0)) || kill "${others[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
cat docs/*.md README.md CONTRIBUTING.md >"$work/text.txt"

# speed NAME FLAG...: trains, and prints the median tokens per second of the logged steps, without the first ones.
speed() {
  "$raffia" train lm --data "$work/text.txt" --out "$work/$1" --tokenizer byte --layers 3 --width 128 --heads 4 --batch 8 --segment 256 \
    --steps 60 --log-every 5 --eval-every 1000 --no-plot "${@:2}" >"$work/$1.log" 2>&1 || { tail "$work/$1.log" >&2 && exit 1; }
  python3 - "$work/$1/log.jsonl" <<'PYTHON'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(round(statistics.median([row["tokens_per_second"] for row in rows if "tokens_per_second" in row][2:])))
PYTHON
}

idle=$(speed idle)
for ((i = 0; i < $(nproc); ++i)); do
  yes >/dev/null &
  others+=($!)
done
busy=$(speed busy)
crowded=$(speed crowded --threads "$(nproc)")
spinning=$(OMP_WAIT_POLICY=active speed spinning --threads "$(nproc)")
chosen=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["threads"])' "$work/busy/trainer/options.json")
of_idle() { python3 -c "print(round($1 / $idle, 2))"; }
{
  echo "| $(nproc) cores, $("$raffia" info --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["cpu"])') | tokens/s | of idle |"
  echo "|---|---|---|"
  echo "| idle | $idle | 1 |"
  echo "| $(nproc) other processes (\`yes >/dev/null\`): $chosen of $(nproc) threads chosen | $busy | $(of_idle "$busy") |"
  echo "| the same, \`--threads $(nproc)\` | $crowded | $(of_idle "$crowded") |"
  echo "| the same, \`--threads $(nproc)\` and \`OMP_WAIT_POLICY=active\` | $spinning | $(of_idle "$spinning") |"
} | tee "$work/table"
fill docs/training.md busy "$work/table"
