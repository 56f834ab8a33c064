#!/usr/bin/env python3
"""Compares the speed of two builds: scripts/compare.py OLD NEW [--rounds N] [--only WORD]

OLD and NEW are directories with bin/raffia. Both run the same benchmarks in turn, so that a slow period of the machine affects both; the best time of all
rounds counts. Prints a table of the ratio new / old, the slowest first. Run it on a quiet machine. Exit status 1 if a ratio is above 1.03.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT = 1.03
BENCHMARKS = [
    "bench attention --causal --ops softmax,rfa,rfa_gate,hybrid,lara,eva,ra --lengths 256,2048 --repeats 5",
    "bench attention --ops softmax,rfa,eva,ra --lengths 2048 --repeats 3",
    "bench attention --causal --ops softmax,rfa,rfa_gate,hybrid,lara,eva --passes backward --lengths 2048 --repeats 3",
    "bench attention --causal --ops rfa_gate --input features --no-softmax --lengths 8192 --threads 1,2 --repeats 5",
    "bench step --ops softmax,rfa,rfa_gate,hybrid,lara,eva --input features,qk --lengths 2048 --repeats 30",
    "bench decode --estimators softmax,window,rfa_gate,hybrid,lara,eva --depths 512 --batch 1,4 --layers 4 --repeats 5",
    "bench prefill --estimators softmax,window,rfa_gate,hybrid --lengths 512 --layers 4 --repeats 3",
]
KEYS = ("op", "pass", "test", "input", "causal", "length", "threads", "batch", "depth")


def run(build, arguments):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(build / "lib"))
    command = [str(build / "bin/raffia"), *arguments.split(), "--json"]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return {tuple((key, record[key]) for key in KEYS if key in record): record["seconds"] for record in json.loads(output)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs=2, type=Path, metavar="DIRECTORY")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="WORD", help="benchmarks whose command has this word: prefill")
    flags = parser.parse_args()
    best = [{}, {}]
    for arguments in (one for one in BENCHMARKS if flags.only in one):
        for _ in range(flags.rounds):
            for which, build in enumerate(flags.builds):
                for key, seconds in run(build, arguments).items():
                    best[which][key] = min(seconds, best[which].get(key, seconds))
        print(f"measured: raffia {arguments}", file=sys.stderr)
    rows = sorted(((best[1][key] / best[0][key], key) for key in best[0] if key in best[1]), reverse=True)
    print("| new / old | old, us | what |\n|---:|---:|---|")
    for ratio, key in rows:
        what = ", ".join(f"{name} {value}" for name, value in key)
        print(f"| {ratio:.3f} | {1e6 * best[0][key]:.1f} | {what} |")
    sys.exit(1 if rows[0][0] > LIMIT else 0)


if __name__ == "__main__":
    main()
