#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a page of results: scripts/demo.sh [TEXT]
# Installs packages, builds for this machine alone (in build/demo), trains an RFA-Gate language model and a softmax one of the same
# size on TEXT (by default on Jane Austen's novels, from the package r-cran-janeaustenr), lets both write, measures them, kills a
# session and restores it, and writes out/demo/index.html. Under 10 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

if (($# > 1)) || [[ ${1-} == -* ]]; then
  echo "usage: scripts/demo.sh [TEXT]" >&2
  exit 2
fi
out=out/demo
text=${1:-}
if [[ -n $text && ! -r $text ]]; then
  echo "demo.sh: cannot read $text, expected a text file" >&2
  exit 1
fi

begin=$SECONDS
step() { printf '\n==== %s (%d s so far)\n' "$1" $((SECONDS - begin)) >&2; }

step "packages"
scripts/setup.sh --no-tests

step "build"
cmake --preset demo >&2
cmake --build --preset demo --target raffia_cli raffia_train -j "$(nproc)" >&2
raffia=$PWD/build/demo/bin/raffia

rm -rf "$out"
mkdir -p "$out"

# austen FILE: the novels as one text.
austen() {
  local place
  place=$(mktemp -d)
  chmod 755 "$place"
  (cd "$place" && apt-get download -q r-cran-janeaustenr >&2 && dpkg-deb -x r-cran-janeaustenr_*.deb unpacked)
  scripts/austen.py "$(find "$place/unpacked" -name Rdata.rdb)" >"$1"
  rm -rf "$place"
}

step "text"
name=${text:+$(basename "$text")}
if [[ -z $text ]]; then
  text=$out/austen.txt
  name="Jane Austen's novels"
  austen "$text"
fi
echo "$name: $(wc -c <"$text") bytes" >&2

# The same size, the same steps; what differs is the attention. Few pieces, so that most of the minutes go into the layers.
models=(rfa_gate softmax)
tokenizer=auto
if (($(wc -c <"$text") > 1000000)); then tokenizer=sp:1000; fi
for model in "${models[@]}"; do
  step "train $model"
  "$raffia" train lm --data "$text" --out "$out/$model" --estimator "$model" --tokenizer "$tokenizer" --layers 3 --width 128 \
    --heads 4 --batch 8 --segment 256 --steps 350 --eval-every 70 --valid-share 0.01 --no-plot --json >"$out/$model.train.json"
done

# Words from the last half percent of the text, which is held out.
step "write"
prompt=$(tail -c $(($(wc -c <"$text") / 200 + 1)) "$text" | tr -s '[:space:]' ' ' | cut -c 1-300 | cut -d ' ' -f 2-13)
for model in "${models[@]}"; do
  "$raffia" generate "$out/$model" --prompt "$prompt" --tokens 200 --temperature 0.7 --top-p 0.9 --seed 3 --json >"$out/$model.sample.json"
done

step "decode speed and memory against length"
"$raffia" bench decode --model "$out/rfa_gate" --model "$out/softmax" --depths 0,256,512,1024,2048,4096,8192,16384,32768 --tokens 32 --threads 1 \
  --repeats 20 --json >"$out/decode.json"

step "state files"
for model in "${models[@]}"; do
  for bytes in 300 1000 10000 40000; do
    # A character that is cut in two at the end is left out.
    head -c "$bytes" "$text" | { iconv -c -f utf-8 -t utf-8 2>/dev/null || true; } >"$out/part.txt"
    "$raffia" state save "$out/$model" "$out/$model-$bytes.state" --prompt-file "$out/part.txt" >&2
    "$raffia" state info "$out/$model-$bytes.state" --json >"$out/$model-$bytes.state.json"
    rm "$out/$model-$bytes.state"
  done
done
rm "$out/part.txt"

# What is written in one go; then half of it, the state of which goes into a file. A second process goes on from there and is killed in the
# middle. A third one does the same, and must write what the first wrote.
step "a session is saved, killed and restored"
sampling=(--temperature 0.8 --seed 11)
half=150
"$raffia" generate "$out/rfa_gate" --prompt "$prompt" --tokens $((2 * half)) "${sampling[@]}" >"$out/whole.txt"
"$raffia" generate "$out/rfa_gate" --prompt "$prompt" --tokens $half "${sampling[@]}" --state-out "$out/session.state" >"$out/first.txt"
: >"$out/killed.txt"
"$raffia" generate "$out/rfa_gate" --state-in "$out/session.state" --tokens 10000000 >"$out/killed.txt" 2>/dev/null &
process=$!
trap 'kill $process 2>/dev/null || true' EXIT
while (($(wc -c <"$out/killed.txt") < 200)); do
  kill -0 $process
  sleep 0.05
done
kill -9 $process
wait $process 2>/dev/null || true
"$raffia" generate "$out/rfa_gate" --state-in "$out/session.state" --tokens $half >"$out/restored.txt"

same=true
cat "$out/first.txt" "$out/restored.txt" | cmp - "$out/whole.txt" >&2 || same=false
bytes=$(stat -c %s "$out/restored.txt")
shown=$(stat -c %s "$out/killed.txt")
cmp -n $((shown < bytes ? shown : bytes)) "$out/killed.txt" "$out/restored.txt" >&2 || same=false
"$raffia" state info "$out/session.state" --json >"$out/session.json"
if ! $same; then
  echo "demo.sh: the restored session wrote something else than the one that was never interrupted: compare the files of $out" >&2
  exit 1
fi

step "page"
"$raffia" info --json >"$out/machine.json"
scripts/demo_page.py "$out" --title "$name" --prompt "$prompt" --seconds $((SECONDS - begin))
echo "The page is $PWD/$out/index.html ($((SECONDS - begin)) s in all)"
