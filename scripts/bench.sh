#!/usr/bin/env bash
# Measures the tables and plots of docs/performance-<isa>.md, where <isa> is the instruction set of this machine (avx2, avx512), and
# writes them there: scripts/bench.sh [TABLE...], all of them by default, about three quarters of an hour on two cores. A page or table
# that is not there yet is added. Needs a quiet machine and a release build. The summary of docs/performance.md quotes the tables: check
# it afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=" $* "
source scripts/tables.sh

isa=$(active_isa)
[[ -n $isa ]] || { echo "bench.sh: raffia info --json names no isa" >&2; exit 1; }
document=docs/performance-$isa.md
images=docs/img
names=
mkdir -p $images

start_page() {
  [[ ! -e $document ]] || return 0
  cat >"$document" <<TEXT
# Tables of performance: $isa

Written by \`scripts/bench.sh\` on a machine whose widest instruction set is $isa; each table stands below its command.
[performance.md](performance.md) says what is measured and what the figures mean, and [cli.md](cli.md#fields-of-a-record) explains the columns.
TEXT
}

# bench TITLE NAME ARGUMENTS...: the table NAME of this machine's page, under the title with the ISA in it.
bench() {
  local title="$1 ($isa)" name=$2
  shift 2
  names+=" $name "
  is_wanted "$name" || return 0
  start_page
  grep -qxF "<!-- table $name -->" "$document" || printf '\n## %s\n\n<!-- table %s -->\n<!-- end %s -->\n' "$title" "$name" "$name" >>"$document"
  table "$document" "$name" "$@"
}

bench "Machine" machine info
bench "Decoding against depth" model_decode bench decode --depths 0,512,2048,4096,8192,32768,131072 --tokens 4 --threads 1,2 --repeats 15 \
  --plot $images/decode-$isa
bench "Decoding with RFA-Gate against depth" model_flat bench decode --estimators rfa_gate --depths 0,512,4096,32768,131072 --tokens 8 --threads 1,2 \
  --repeats 150
bench "Decoding with 16 sessions" model_batch bench decode --batch 16 --depths 0,512,2048,8192 --tokens 8 --threads 1,2 --repeats 5
bench "Weights" model_types bench decode --type f32,bf16,int8,int4 --depths 512 --tokens 8 --threads 1,2 --repeats 30
bench "Weights of a wider model" model_wide bench decode --layers 8 --width 1024 --heads 16 --estimators rfa_gate --type f32,bf16,int8,int4 --depths 512 \
  --tokens 4 --threads 1,2 --repeats 15
bench "Prompts of 512 tokens" model_prompts bench prefill --lengths 512 --estimators rfa_gate,softmax --type f32,bf16,int8,int4 --threads 1,2 --repeats 9
bench "Prompts of 512 tokens, 12 layers of width 768" model_prompts_wide bench prefill --layers 12 --width 768 --heads 12 --lengths 512 \
  --estimators rfa_gate,softmax --type f32,int8,int4 --threads 1,2 --repeats 5
bench "Prompts" model_prefill bench prefill --lengths 2048,8192,32768 --threads 2 --repeats 1
bench "Sessions" model_sessions bench session --repeats 15
bench "Crossover with softmax" crossover bench attention --causal --ops softmax,rfa,rfa_gate --lengths 64,128,256,512,1024,2048,4096,8192 --threads 1 \
  --repeats 9 --plot $images/crossover-$isa
bench "Causal forward" forward bench attention --causal --ops softmax,rfa,rfa_gate --input features,qk --lengths 512,2048,8192 --threads 1,2 --repeats 15
bench "Backward" backward bench attention --causal --ops softmax,rfa,rfa_gate --passes forward,backward,forward+backward --input features,qk \
  --lengths 512,2048,8192 --threads 1 --repeats 9
bench "Bidirectional" bidirectional bench attention --ops softmax,rfa --input features,qk --lengths 2048,8192 --threads 1,2 --repeats 9
bench "All estimators, bidirectional" estimators bench attention --ops softmax,rfa,lara,lara:mean=false,eva --passes forward,backward \
  --lengths 2048,4096,8192 --threads 1 --repeats 9
bench "All estimators, causal" estimators_causal bench attention --causal --ops softmax,rfa,rfa_gate,hybrid,lara,eva --input features,qk \
  --lengths 2048,4096,8192 --threads 1 --repeats 9
bench "All estimators, causal, backward" estimators_backward bench attention --causal --ops softmax,rfa_gate,hybrid,lara,eva --passes backward \
  --lengths 2048,4096,8192 --threads 1 --repeats 7
bench "One head, one long sequence" segments bench attention --causal --ops rfa_gate --no-softmax --heads 1 --input features,qk --lengths 65536 \
  --segment -1,0 --threads 1,2 --repeats 15
bench "Steps" decode bench step --ops softmax,rfa_gate --input features,qk --lengths 512,2048,8192,32768,131072 --threads 1 --repeats 15
bench "Steps of all estimators" estimators_decode bench step --ops softmax,rfa_gate,hybrid,lara,eva --input features,qk --lengths 512,2048,8192,32768 \
  --threads 1 --repeats 15
bench "Training one layer" train_layer bench train --what layer --ops softmax,torch_softmax,rfa_gate,torch_chunked --lengths 512,1024,2048,4096,8192 \
  --threads 1 --repeats 3 --torch-max-length 4096
bench "Training one layer, all estimators" train_layer_estimators bench train --what layer --ops softmax,window:before=1,rfa,rfa_gate,hybrid,lara,ra,eva \
  --lengths 512,2048 --threads 1 --repeats 2
bench "Training a whole model" train_model bench train --what model --ops softmax,torch_softmax,rfa_gate --lengths 4096 --threads 2 --repeats 1
bench "Instruction sets" isa bench isa

for name in "$@"; do
  [[ $names == *" $name "* ]] || { echo "bench.sh: there is no table $name, expected some of$names" >&2; exit 2; }
done
