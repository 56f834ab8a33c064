#!/usr/bin/env bash
# Measures every table of docs/performance-tables.md, and its plots, and writes them there: scripts/bench.sh [TABLE...], all of them by
# default, about three quarters of an hour on two cores. Needs a quiet machine and a release build. The summary of docs/performance.md
# quotes the tables: check it afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=" $* "
source scripts/tables.sh

document=docs/performance-tables.md
mkdir -p docs/img
table $document machine info
table $document model_decode bench decode --depths 0,512,2048,4096,8192,32768,131072 --tokens 4 --threads 1,2 --repeats 15 \
  --plot docs/img/decode
table $document model_flat bench decode --estimators rfa_gate --depths 0,512,4096,32768,131072 --tokens 8 --threads 1,2 --repeats 150
table $document model_batch bench decode --batch 16 --depths 0,512,2048,8192 --tokens 8 --threads 1,2 --repeats 5
table $document model_types bench decode --type f32,bf16,int8,int4 --depths 512 --tokens 8 --threads 1,2 --repeats 30
table $document model_wide bench decode --layers 8 --width 1024 --heads 16 --estimators rfa_gate --type f32,bf16,int8,int4 --depths 512 --tokens 4 --threads 1,2 --repeats 15
table $document model_prefill bench prefill --lengths 2048,8192,32768 --threads 2 --repeats 1
table $document model_sessions bench session --repeats 15
table $document forward bench attention --causal --ops softmax,rfa,rfa_gate --input features,qk --lengths 512,2048,8192 --threads 1,2 --repeats 15
table $document backward bench attention --causal --ops softmax,rfa,rfa_gate --passes forward,backward,forward+backward --input features,qk \
  --lengths 512,2048,8192 --threads 1 --repeats 9
table $document bidirectional bench attention --ops softmax,rfa --input features,qk --lengths 2048,8192 --threads 1,2 --repeats 9
table $document estimators bench attention --ops softmax,rfa,lara,lara:mean=false,eva --passes forward,backward --lengths 2048,4096,8192 --threads 1 --repeats 9
table $document estimators_causal bench attention --causal --ops softmax,rfa,rfa_gate,hybrid,lara,eva --input features,qk --lengths 2048,4096,8192 \
  --threads 1 --repeats 9
table $document estimators_backward bench attention --causal --ops softmax,rfa_gate,hybrid,lara,eva --passes backward --lengths 2048,4096,8192 --threads 1 \
  --repeats 7
table $document segments bench attention --causal --ops rfa_gate --no-softmax --heads 1 --input features,qk --lengths 65536 --segment -1,0 \
  --threads 1,2 --repeats 15
table $document decode bench step --ops softmax,rfa_gate --input features,qk --lengths 512,2048,8192,32768,131072 --threads 1 --repeats 15
table $document estimators_decode bench step --ops softmax,rfa_gate,hybrid,lara,eva --input features,qk --lengths 512,2048,8192,32768 --threads 1 \
  --repeats 15
table $document crossover bench attention --causal --ops softmax,rfa,rfa_gate --lengths 64,128,256,512,1024,2048,4096,8192 --threads 1 --repeats 9 \
  --plot docs/img/crossover
table $document train_layer bench train --what layer --ops softmax,torch_softmax,rfa_gate,torch_chunked --lengths 512,1024,2048,4096,8192 --threads 1 --repeats 3 --torch-max-length 4096
table $document train_layer_estimators bench train --what layer --ops softmax,window:before=1,rfa,rfa_gate,hybrid,lara,ra,eva --lengths 512,2048 --threads 1 --repeats 2
table $document train_model bench train --what model --ops softmax,torch_softmax,rfa_gate --lengths 4096 --threads 2 --repeats 1
