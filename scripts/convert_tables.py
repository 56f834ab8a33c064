"""Tables of docs/convert.md from what scripts/convert.sh measured: convert_tables.py DIRECTORY."""
import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1])


def nll(name):
    return json.loads((out / name).read_text())[0]["nll"]


def tuned(name):
    return json.loads((out / f"{name}.summary.json").read_text())["valid"]["nll"]


def write(name, heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|:--|" + "--:|" * (len(heads) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    (out / f"{name}.md").write_text("\n".join(lines) + "\n")


before = nll("softmax.swapped.json")
rows = [["softmax (not swapped)", f"{before:.3f}", f"{before:.3f}", f"{tuned('softmax'):.3f}"]]
for name in ["rfa_gate", "rfa", "hybrid", "eva"]:
    rows.append([name, f"{before:.3f}", f"{nll(f'{name}.swapped.json'):.3f}", f"{tuned(name):.3f}"])
write("finetuned", ["attention", "before", "after the swap", "after finetuning"], rows)

rows = []
for name in ["relu", "trig", "positive"]:
    fitted = "rfa_gate" if name == "relu" else f"fitted-{name}"
    rows.append([f"`{name}`"] + [f"{nll(f'{model}.swapped.json'):.3f}" for model in (f"new-{name}", f"searched-{name}", fitted)])
rows.append(["`relu`, no rotary positions", "", "", f"{nll('no-positions.swapped.json'):.3f}"])
rows.append(["`relu`, in layers 0, 2 and 4 alone", "", "", f"{nll('half.swapped.json'):.3f}"])
write("choices", ["map", "as in a new model", "searched", "fitted"], rows)
