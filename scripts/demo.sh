#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a page of results: scripts/demo.sh [TEXT]
# Installs packages, builds for this machine alone (in build/demo), trains an RFA-Gate language model and a softmax one of the same
# size on TEXT (UTF-8; by default Jane Austen's novels, from the package r-cran-janeaustenr), scores both on held-out text, lets both
# write, measures them, kills a session and restores it, and writes out/demo/index.html. About 5 to 12 minutes on two cores, most of it the build.
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
echo "demo.sh: about 5 to 12 minutes on two cores when nothing is built yet" >&2
step() { printf '\n==== %s (%d s so far)\n' "$1" $((SECONDS - begin)) >&2; }

step "packages"
scripts/setup.sh --no-training --no-tests

# LibTorch, most of the download, is installed while what does not need it is built.
step "build"
scripts/setup.sh --no-tests &
setup=$!
trap 'wait $setup || true' EXIT # apt must not be left running, nor be killed
build() { cmake --preset demo "$1" >&2 && cmake --build --preset demo --target "${@:2}" -j "$(nproc)" >&2; }
build -DRAFFIA_BUILD_TORCH=OFF raffia_cli
trap - EXIT
wait $setup
build -DRAFFIA_BUILD_TORCH=ON raffia_cli raffia_train
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
size=$(wc -c <"$text")
echo "$name: $size bytes" >&2
if ! iconv -f utf-8 -t utf-8 "$text" >/dev/null 2>&1; then
  echo "demo.sh: $text is not UTF-8, expected plain text in UTF-8" >&2
  exit 1
fi

# The end of the text is held out: one percent, but enough for several segments, and no more than softmax can read without a reset: its
# time grows with the square. A character that the cut goes through is left out.
held=$((size / 100))
if ((held > 60000)); then held=60000; fi
if ((held < 5000)); then held=$((size / 5 < 5000 ? size / 5 : 5000)); fi
whole_characters() { iconv -c -f utf-8 -t utf-8 2>/dev/null || true; }
head -c $((size - held)) "$text" | whole_characters >"$out/train.txt"
tail -c $held "$text" | whole_characters >"$out/held-out.txt"

# The same size, the same steps; what differs is the attention. Few pieces, so that most of the minutes go into the layers. Both train at
# the same time, with half of the cores each: models this small gain little from more threads.
models=(rfa_gate softmax)
segment=256
tokenizer=auto
if ((size > 1000000)); then tokenizer=sp:1000; fi
threads=$((($(nproc) + 1) / 2))
# train MODEL
train() {
  "$raffia" train lm --data "$out/train.txt" --valid "$out/held-out.txt" --out "$out/$1" --estimator "$1" --tokenizer "$tokenizer" \
    --layers 3 --width 128 --heads 4 --batch 8 --segment $segment --steps 350 --eval-every 70 --threads "$threads" --no-plot --json >"$out/$1.train.json"
}
step "train ${models[*]}"
train "${models[1]}" 2>"$out/${models[1]}.train.log" & # the first one shows its progress
other=$!
trap 'kill $other 2>/dev/null || true' EXIT
train "${models[0]}"
wait $other || {
  tail -n 5 "$out/${models[1]}.train.log" >&2
  exit 1
}
trap - EXIT
tail -n 1 "$out/${models[1]}.train.log" >&2

# Like for like: both from empty memory every so many tokens, and both without a reset: RFA-Gate with its state carried through the text,
# softmax with one segment that is longer than the text.
step "score on held-out text"
"$raffia" eval "$out/rfa_gate" --data "$out/held-out.txt" --segments $segment,$((4 * segment)) --memory reset,carried --json >"$out/rfa_gate.eval.json"
"$raffia" eval "$out/softmax" --data "$out/held-out.txt" --segments $segment,$((4 * segment)),$((held + 1)) --memory reset --json >"$out/softmax.eval.json"

step "write"
prompt=$(tail -c $((held / 2)) "$out/held-out.txt" | tr -s '[:space:]' ' ' | cut -c 1-300 | cut -d ' ' -f 2-13)
for model in "${models[@]}"; do
  "$raffia" generate "$out/$model" --prompt "$prompt" --tokens 200 --temperature 0.7 --top-p 0.9 --seed 3 --json >"$out/$model.sample.json"
done

step "decode speed and memory against length"
# Tasks that run beside this script: the least of five looks, since short ones come and go.
other_tasks() {
  local least=1000 look running
  for look in 1 2 3 4 5; do
    read -r _ _ _ running _ </proc/loadavg
    running=$((${running%%/*} - 1))
    least=$((running < least ? running : least))
    sleep 0.1
  done
  echo "$least"
}
# In rounds: their spread tells how far the figures can be trusted.
others=0
repeats=7
for round in 1 2 3; do
  found=$(other_tasks)
  others=$((found > others ? found : others))
  "$raffia" bench decode --model "$out/rfa_gate" --model "$out/softmax" --depths 256,1024,4096,8192,16384,32768 --tokens 32 --threads 1 \
    --repeats $repeats --json >"$out/decode-$round.json"
done
printf '{"others": %d, "repeats": %d}\n' "$others" "$repeats" >"$out/load.json"

step "state files"
for model in "${models[@]}"; do
  for bytes in 300 1000 10000 40000; do
    head -c "$bytes" "$text" | whole_characters >"$out/part.txt"
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
