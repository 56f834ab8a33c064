"""Runs the Python blocks of docs/torch.md, with its library replaced by the one under test, and compares its table with the ops."""

import os
import re
import sys

import torch

PRINTED = "build/lib/libraffia_torch.so"

document, library = sys.argv[1], os.environ["RAFFIA_TORCH_LIBRARY"]
with open(document, encoding="utf-8") as file:
    text = file.read()
blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
assert any(PRINTED in block for block in blocks), f"{document}: no Python block loads {PRINTED}"
for block in blocks:
    print(block)
    exec(compile(block.replace(PRINTED, library), document, "exec"), {})

# The table names every op, and every argument of it.
schemas = {s.name[len("raffia::") :]: s for s in torch._C._jit_get_all_schemas() if s.name.startswith("raffia::")}
rows = {}
for line in text.splitlines():
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if len(cells) != 5 or not cells[0].startswith("`"):
        continue
    names = re.findall(r"\w+", cells[0])  # "`causal_rfa`, `_step`" are two ops
    for name in names:
        rows[names[0] + name if name.startswith("_") else name] = cells[1] + ", " + cells[2]
public = {name for name in schemas if not name.startswith("_")}
assert set(rows) == public, f"{document}: the table lists {sorted(rows)}, expected {sorted(public)}"
for name, arguments in rows.items():
    told = set(re.findall(r"\w+", re.sub(r"\[.*?\]|=[^,`]+", "", arguments)))
    for argument in schemas[name].arguments:
        assert argument.name in told, f"{document}: the row of {name} does not name its argument {argument.name}"
