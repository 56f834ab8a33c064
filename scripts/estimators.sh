#!/usr/bin/env bash
# Measures every table and picture of docs/estimators.md and docs/choosing.md and puts them there: scripts/estimators.sh [TABLE...], all of
# them by default, a few minutes on two cores. Errors do not depend on the machine; times want a quiet one, and a release build.
# The tables heads-N are of a trained model and need two variables: STORIES260K, a directory with stories260K.bin and tok512.bin (llama2.c), and
# TINYSTORIES, a text file (.xz is read). Without them these tables are left as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=" $* "
source scripts/tables.sh

estimators=docs/estimators.md
choosing=docs/choosing.md
mkdir -p docs/img
table $estimators walk approx --data walk --scale 1.5 --estimators rfa:log=true,lara,lara:mean=false,eva,ra --samples 16,64,256 --seeds 10 --threads 1 \
  --plot docs/img/approx
table $estimators walk-1 approx --data walk --scale 1 --estimators rfa:log=true,lara,lara:mean=false,eva --samples 16,64,256 --seeds 10 --threads 1
table $estimators draws approx --data walk --scale 1 --estimators ra --samples 1,4,16,64,256 --seeds 5 --threads 1
table $estimators iid approx --data iid --scale 0.5,1,2 --estimators rfa:log=true,lara,lara:mean=false,eva,ra --samples 64 --seeds 5 --threads 1
table $estimators causal approx --causal --data walk --scale 1 --estimator eva:samples=0 --estimator eva:samples=64 \
  --estimator lara:samples=128 --estimator lara:samples=128,streaming=false --estimator window --estimator window:before=1 \
  --estimator hybrid:samples=64 --seeds 10 --threads 1
table $estimators variants approx --data walk --scale 1 --estimator lara --estimator lara:mean=false --estimator lara:proposals=qk-mixed,mean=false \
  --estimator lara:draws=iid,mean=false --estimator lara:weights=mis-opt,mean=false --estimator lara:weights=mis-opt,strength=2,mean=false \
  --estimator lara:samples=256,per-proposal=4 --estimator lara:samples=1024,per-proposal=16 --samples 64 --seeds 10 --threads 1
table $estimators means approx --data walk,rw,iid --scale 1 --length 4096 --estimators lara,lara:mean=false --samples 16,64,256 --seeds 5 --threads 1
if [[ -n ${STORIES260K:-} && -n ${TINYSTORIES:-} ]]; then
  heads=$(mktemp -d)
  trap 'rm -r "$heads"' EXIT
  "$raffia" import llama2c "$STORIES260K/stories260K.bin" "$STORIES260K/tok512.bin" "$heads/stories"
  for layer in 0 2 4; do
    "$raffia" eval "$heads/stories" --data "$TINYSTORIES" --dump-qkv "$heads/layer$layer.safetensors" --layer $layer >&2
    (
      raffia=$(realpath "$raffia") estimators=$(realpath $estimators)
      cd "$heads"
      table "$estimators" heads-$layer approx --input layer$layer.safetensors --estimators rfa:log=true,lara,lara:mean=false,eva,ra --samples 16,49 \
        --seeds 10 --threads 1
    )
  done
fi
table $estimators gaussian approx --target gaussian --data walk --scale 1 --estimators rfa --samples 16,64,256,1024 --seeds 5 --threads 1
table $estimators matrix approx --data walk --scale 1.5 --length 256 --estimator eva:samples=32 --estimator lara:samples=64 --estimator lara:samples=64,mean=false \
  --estimator rfa:samples=64,log=true --seeds 1 --threads 1 --show-matrix docs/img/matrix
table $choosing error-whole approx --data walk --scale 1 --length 4096 --estimators eva,lara,lara:mean=false,rfa:log=true --samples 64 --seeds 5 --threads 1
table $choosing error approx --causal --data walk --scale 1 --length 2048 --estimator window --estimator hybrid:samples=64 --estimator eva:samples=64 \
  --estimator lara:samples=128 --seeds 5 --threads 1
table $choosing time bench attention --causal --ops softmax,rfa_gate,hybrid,eva,lara --lengths 2048,8192 --threads 1 --repeats 7
table $choosing bidirectional bench attention --ops softmax,rfa,lara,lara:mean=false,eva --lengths 2048,8192 --threads 1 --repeats 7
table $choosing step bench step --ops softmax,rfa_gate,hybrid,eva,lara --lengths 2048,8192,32768 --threads 1 --repeats 7
