#!/usr/bin/env python3
"""What scripts/results.sh finds in its runs, printed for docs/results.md.

  results_tables.py best DIR          the name of the run under DIR with the best validation score
  results_tables.py wikitext DIR      the table of language models
  results_tables.py recall DIR        the table of associative recall
  results_tables.py curves DIR PREFIX a gnuplot script that draws PREFIX.svg and PREFIX.png
"""
import json
import sys
from pathlib import Path


def read(path):
    return json.loads(path.read_text()) if path.is_file() else None


def complete_runs(directory):
    """Summaries by the name of their run, in the order of names."""
    found = {path.parent.name: read(path) for path in sorted(directory.glob("*/summary.json"))}
    if not found:
        sys.exit(f"results_tables.py: {directory} holds no complete run")
    return found


def best_run(directory):
    runs = complete_runs(directory)
    return min(runs, key=lambda name: runs[name]["valid"]["nll"])


def models_of(directory):
    """Directories of models that have a complete run."""
    found = sorted(path for path in directory.iterdir() if list(path.glob("*/summary.json"))) if directory.is_dir() else []
    if not found:
        sys.exit(f"results_tables.py: {directory} holds no complete run")
    return found


def print_table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|:--" + "|--:" * (len(head) - 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def number(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def score(records, memory, segment, field):
    for record in records or []:
        if record["memory"] == memory and segment in (None, record["segment"]):
            return record[field]
    return None


def print_wikitext(directory):
    rows = []
    for model in models_of(directory):
        best = best_run(model)
        summary, test = read(model / best / "summary.json"), read(model / best / "test.json")
        # A model that was trained with its memory carried is read that way; the others from empty memory, as trained.
        main = ("carried", None) if model.name.endswith("-stateful") else ("reset", 256)
        rates = ", ".join(f"{rate}: {run['valid']['nll']:.3f}" for rate, run in complete_runs(model).items())
        rows.append((
            score(test, *main, "nll") or float("inf"),
            [
                model.name,
                number(score(test, *main, "nll"), 3),
                number(score(test, *main, "word_perplexity"), 0),
                number(score(test, *main, "bits_per_byte"), 3),
                number(score(test, "reset", 256, "nll"), 3),
                number(score(test, "reset", 512, "nll"), 3),
                number(score(test, "reset", 1024, "nll"), 3),
                number(score(test, "carried", None, "nll"), 3),
                rates,
                f"{summary['parameters']:,}",
                f"{summary['tokens_per_second']:,.0f}",
            ],
        ))
    head = ["model", "test nll per piece", "word perplexity", "bits per byte", "reset 256", "reset 512", "reset 1024", "carried",
            "validation nll by learning rate", "parameters", "tokens/s"]
    print_table(head, [row for _, row in sorted(rows, key=lambda row: row[0])])


def print_recall(directory):
    runs = complete_runs(directory)
    metrics = [name for name in next(iter(runs.values()))["valid"] if name.startswith("accuracy")]
    rows = [[name] + [number(100 * run["valid"][metric], 1) for metric in metrics] for name, run in runs.items()]
    print_table(["model"] + [f"{metric.replace('_', ' ')}, %" for metric in metrics], rows)


def print_curves(directory, prefix):
    curves = []
    for model in models_of(directory):
        log = model / best_run(model) / "model" / "log.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        curves.append((model.name, [(record["step"], record["nll"]) for record in records if "nll" in record]))
    for number_of_curve, (_, points) in enumerate(curves):
        print(f"$curve{number_of_curve} << END")
        for step, nll in points:
            print(step, nll)
        print("END")
    print("set xlabel 'step'; set ylabel 'validation nll per piece'; set grid; set key outside right")
    for terminal, ending in (("svg size 900,540 dynamic background 'white'", "svg"), ("pngcairo size 900,540", "png")):
        print(f"set terminal {terminal}; set output '{prefix}.{ending}'")
        print("plot " + ", ".join(f"$curve{i} with linespoints pointtype 7 pointsize 0.4 title '{name}' noenhanced"
                                  for i, (name, _) in enumerate(curves)))


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "best":
        print(best_run(Path(arguments[1])))
    elif len(arguments) == 2 and arguments[0] == "wikitext":
        print_wikitext(Path(arguments[1]))
    elif len(arguments) == 2 and arguments[0] == "recall":
        print_recall(Path(arguments[1]))
    elif len(arguments) == 3 and arguments[0] == "curves":
        print_curves(Path(arguments[1]), arguments[2])
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
