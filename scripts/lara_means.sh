#!/usr/bin/env bash
# Trains small classifiers with LARA on generated expressions (scripts/listops.py), evaluates each with the means of its proposals and with drawn samples,
# and puts the table into docs/results.md: scripts/lara_means.sh
# Needs a release build. Trains six models, about three minutes on one core. The figures depend on rounding alone, not on speed.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/tables.sh
raffia=$(realpath "$raffia")
listops=$(realpath scripts/listops.py)
document=$(realpath docs/results.md)

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"
"$listops" 8000 1 >train.tsv
"$listops" 2000 2 >test.tsv
# `mean` is not a weight: the same model is evaluated both ways by changing the text of its estimator.
evaluated() { # SAMPLES MODEL MEAN
  rm -rf other
  cp -r "$2" other
  sed -i "s/mean=auto/mean=$3/" other/config.json
  echo "$1 $3 $("$raffia" eval other --data test.tsv --csv | tail -n 1)"
}
for samples in 8 32; do
  for seed in 1 2 3; do
    model=lara-$samples-$seed
    echo "lara_means.sh: $model" >&2
    "$raffia" train classify --data train.tsv --out "$model" --tokenizer word --estimator lara:samples=$samples --layers 2 --width 64 --heads 2 \
      --steps 2000 --seed $seed --threads 1 --no-plot >messages 2>&1
    for mean in true false; do evaluated $samples "$model" $mean; done
  done
done >scores

{
  cat <<'END'
```sh
scripts/listops.py 8000 1 > train.tsv && scripts/listops.py 2000 2 > test.tsv
raffia train classify --data train.tsv --out lara-8-1 --tokenizer word --estimator lara:samples=8 --layers 2 --width 64 --heads 2 --steps 2000 --seed 1 --threads 1
raffia eval lara-8-1 --data test.tsv     # with "mean=auto" in lara-8-1/config.json replaced by "mean=true", then by "mean=false"
```

| samples | evaluated with | accuracy | nll | nll of each seed |
|--:|:--|--:|--:|:--|
END
  tr ',' ' ' <scores | awk '
    { key = $1 " " $2; if (!(key in n)) order[++keys] = key
      n[key]++; accuracy[key] += $5; nll[key] += $6; each[key] = each[key] sprintf("%s%.3f", n[key] > 1 ? ", " : "", $6) }
    END { for (i = 1; i <= keys; ++i) { key = order[i]; split(key, part, " ")
      printf "| %d | %s | %.1f%% | %.3f | %s |\n", part[1], part[2] == "true" ? "means (`mean=true`)" : "draws (`mean=false`)",
        100 * accuracy[key] / n[key], nll[key] / n[key], each[key] } }'
} >table
fill "$document" lara_means table
