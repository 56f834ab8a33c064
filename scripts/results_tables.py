#!/usr/bin/env python3
"""What scripts/results.sh finds in its runs, printed for docs/results.md.

  results_tables.py best DIR          the name of the sweep under DIR with the best validation score
  results_tables.py wikitext DIR      the table of language models
  results_tables.py recall DIR        the table of associative recall
  results_tables.py recall-plot DIR PREFIX and
  results_tables.py curves DIR PREFIX a gnuplot script that draws PREFIX.svg and PREFIX.png
"""
import json
import sys
from pathlib import Path


def read(path):
    return json.loads(path.read_text()) if path.is_file() else None


def complete_runs(directory, pattern="*"):
    """Summaries by the name of their run, in the order of names."""
    found = {path.parent.name: read(path) for path in sorted(directory.glob(pattern + "/summary.json"))}
    if not found:
        sys.exit(f"results_tables.py: {directory} holds no complete run")
    return found


def best_sweep(directory):
    runs = complete_runs(directory, "sweep-*")
    return min(runs, key=lambda name: runs[name]["valid"]["nll"])


def models_of(directory):
    """Directories of models whose final run is complete."""
    found = sorted(path.parent.parent for path in directory.glob("*/final/summary.json"))
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
        summary, test = read(model / "final" / "summary.json"), read(model / "final" / "test.json")
        # A model that was trained with its memory carried is read that way; the others from empty memory, as trained.
        main = ("carried", None) if model.name.endswith("-stateful") else ("reset", 256)
        rates = ", ".join(f"{rate.removeprefix('sweep-')}: {run['valid']['nll']:.3f}"
                          for rate, run in complete_runs(model, "sweep-*").items())
        rows.append((
            score(test, *main, "nll") or float("inf"),
            [
                model.name,
                number(score(test, *main, "nll"), 3),
                number(score(test, *main, "word_perplexity"), 0),
                number(score(test, *main, "bits_per_byte"), 3),
                number(score(test, "reset", 256, "nll"), 3),
                number(score(test, "reset", 1024, "nll"), 3),
                number(score(test, "reset", 4096, "nll"), 3),
                number(score(test, "carried", None, "nll"), 3),
                number(summary["valid"]["nll"], 3),
                rates,
                f"{summary['parameters']:,}",
            ],
        ))
    head = ["model", "test nll per piece", "word perplexity", "bits per byte", "reset 256", "reset 1024", "reset 4096", "carried",
            "validation nll", "validation nll by learning rate, a third of the steps", "parameters"]
    print_table(head, [row for _, row in sorted(rows, key=lambda row: row[0])])


def recall_by_distance(run):
    """{pairs: {distance: accuracy}}"""
    found = {}
    for name, value in run["valid"].items():
        if "_distance" in name:
            pairs, distance = name.removeprefix("accuracy_pairs").split("_distance")
            found.setdefault(int(pairs), {})[int(distance)] = value
    return found


def best_recalls(directory):
    """The run of each model whose learning rate did best, by "model, rate"."""
    best = {}
    for path in sorted(directory.glob("*/*/summary.json")):
        model, run = path.parent.parent.name, read(path)
        if model not in best or run["valid"]["accuracy"] > best[model][1]["valid"]["accuracy"]:
            best[model] = (path.parent.name, run)
    if not best:
        sys.exit(f"results_tables.py: {directory} holds no complete run")
    return {f"{model}, lr {rate}": run for model, (rate, run) in best.items()}


def print_recall(directory):
    runs = best_recalls(directory)
    distances = sorted({d for run in runs.values() for row in recall_by_distance(run).values() for d in row})
    rows = [[name, str(pairs)] + [number(100 * row[d], 0) if d in row else "" for d in distances]
            for name, run in runs.items() for pairs, row in sorted(recall_by_distance(run).items())]
    print_table(["model", "pairs"] + [f"{d}" for d in distances], rows)


def print_plot(curves, prefix, setup):
    """A gnuplot script: curves are pairs of a title and its points."""
    for number_of_curve, (_, points) in enumerate(curves):
        print(f"$curve{number_of_curve} << END")
        for x, y in points:
            print(x, y)
        print("END")
    print(setup + "; set grid; set key outside right")
    for terminal, ending in (("svg size 900,540 dynamic background 'white'", "svg"), ("pngcairo size 900,540", "png")):
        print(f"set terminal {terminal}; set output '{prefix}.{ending}'")
        print("plot " + ", ".join(f"$curve{i} with linespoints pointtype 7 pointsize 0.6 title '{name}' noenhanced"
                                  for i, (name, _) in enumerate(curves)))


def print_recall_plot(directory, prefix):
    curves = []
    for name, run in best_recalls(directory).items():
        by_pairs = recall_by_distance(run)
        pairs = sorted(by_pairs)[len(by_pairs) // 2]
        curves.append((f"{name}, {pairs} pairs", sorted(by_pairs[pairs].items())))
    print_plot(curves, prefix, "set logscale x 2; set yrange [0:1.05]; set xlabel 'tokens from pair to query'; set ylabel 'accuracy'")


def print_curves(directory, prefix):
    curves = []
    for model in models_of(directory):
        lines = (model / "final" / "model" / "log.jsonl").read_text().splitlines()
        losses = [(record["step"], record["loss"]) for record in map(json.loads, lines) if "loss" in record]
        # Means of ten lines: single batches are noisy.
        means = [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in
                 (losses[i:i + 10] for i in range(0, len(losses), 10))]
        curves.append((model.name, [point for point in means if point[0] >= 300]))
    print_plot(curves, prefix, "set xlabel 'step'; set ylabel 'training loss per piece, mean of 100 steps'")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "best":
        print(best_sweep(Path(arguments[1])))
    elif len(arguments) == 2 and arguments[0] == "wikitext":
        print_wikitext(Path(arguments[1]))
    elif len(arguments) == 2 and arguments[0] == "recall":
        print_recall(Path(arguments[1]))
    elif len(arguments) == 3 and arguments[0] == "recall-plot":
        print_recall_plot(Path(arguments[1]), arguments[2])
    elif len(arguments) == 3 and arguments[0] == "curves":
        print_curves(Path(arguments[1]), arguments[2])
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
