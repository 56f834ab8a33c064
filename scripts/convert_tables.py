"""Tables of docs/convert.md from what scripts/convert.sh measured: convert_tables.py DIRECTORY."""
import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1])


def nll(name):
    return json.loads((out / name).read_text())[0]["nll"]


def error(name):
    fits = json.loads((out / f"{name}.fit.json").read_text())
    return sum(fit["error"] for fit in fits) / len(fits)


def write(name, heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|:--|" + "--:|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    (out / f"{name}.md").write_text("\n".join(lines) + "\n")


before = nll("softmax.swapped.json")
rows = [["softmax (not swapped)", f"{before:.3f}", f"{before:.3f}", f"{nll('softmax.tuned.json'):.3f}", ""]]
for name, label in [("rfa_gate", "rfa_gate"), ("rfa", "rfa"), ("hybrid", "hybrid"), ("eva", "eva")]:
    summary = json.loads((out / f"{name}.summary.json").read_text())
    rows.append([label, f"{before:.3f}", f"{nll(f'{name}.swapped.json'):.3f}", f"{nll(f'{name}.tuned.json'):.3f}", f"{summary['seconds']:.0f} s"])
write("finetuned", ["attention", "before", "after the swap", "after finetuning", "time of finetuning"], rows)

rows = []
for name in ["relu", "trig", "positive"]:
    fitted = "rfa_gate" if name == "relu" else f"fitted-{name}"
    rows.append([f"`{name}`"] + [f"{nll(f'{model}.swapped.json'):.3f}" for model in (f"new-{name}", f"searched-{name}", fitted)] + [f"{error(fitted):.3f}"])
rows.append(["`relu`, no rotary positions", "", "", f"{nll('no-positions.swapped.json'):.3f}", f"{error('no-positions'):.3f}"])
rows.append(["`relu`, in layers 0, 2 and 4 alone", "", "", f"{nll('half.swapped.json'):.3f}", f"{error('half'):.3f}"])
write("choices", ["map", "as in a new model", "searched", "fitted", "error of attention outputs, fitted"], rows)
