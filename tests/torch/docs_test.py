"""Runs the Python blocks of a document, with its library replaced by the one under test."""

import os
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    blocks = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
assert blocks, f"{sys.argv[1]}: no Python block found, expected at least one"
for block in blocks:
    print(block)
    exec(compile(block.replace('"libraffia_torch.so"', repr(os.environ["RAFFIA_TORCH_LIBRARY"])), sys.argv[1], "exec"), {})
