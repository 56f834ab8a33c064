"""Rooms of the code include only what lies below them: docs/architecture.md.

Usage: arrows_test.py SOURCE_DIRECTORY
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1))

# A room, and the rooms that it may include besides itself. Public headers (raffia/...) are declarations that any room may read.
BELOW = {
    "core": [],
    "kernels": ["core"],
    "reference": ["core"],
    "io/formats": ["core"],
    "io/tokenizers": ["core", "io/formats"],
    "io/data": ["core", "io/formats"],
    "estimators": ["core", "kernels"],
    "model": ["core", "estimators", "io/formats", "io/tokenizers", "io/data"],
    "io/imports": ["core", "io/formats", "io/tokenizers", "io/data", "model"],
    "runtime": ["core", "kernels", "estimators", "model", "io/formats", "io/tokenizers"],
    "torch/ops": ["core", "kernels", "estimators", "reference"],
    "torch": ["core", "torch/ops", "estimators", "reference", "model", "io/formats", "io/tokenizers", "io/data"],
    "bench": ["core", "kernels", "estimators", "model", "runtime", "io/formats"],
    "bench/torch": ["core", "bench", "torch", "torch/ops"],
    "cli": ["core", "bench", "bench/torch", "model", "runtime", "torch", "torch/ops", "io/formats", "io/tokenizers", "io/data", "io/imports"],
}


def room_of(path):
    parts = path.split("/")
    two = "/".join(parts[:2])
    return two if two in BELOW else parts[0]


class Arrows(unittest.TestCase):
    def test_includes_point_down(self):
        names = subprocess.check_output(["git", "-C", str(SOURCE), "ls-files", "src"], text=True).split()
        sources = [name for name in names if name.endswith((".cc", ".h"))]
        self.assertGreater(len(sources), 100)
        for name in sources:
            room = room_of(name.removeprefix("src/"))
            self.assertIn(room, BELOW, f"{name}: a room that docs/architecture.md does not have")
            for included in re.findall(r'^#include "([^"]+)"', (SOURCE / name).read_text(), re.MULTILINE):
                if included.startswith(("raffia/", "hwy/", "torch/libtorch.h")):  # the last one is LibTorch
                    continue
                other = room_of(included)
                with self.subTest(source=name, include=included):
                    self.assertIn(other, [room, *BELOW[room]])

    def test_public_headers_include_public_headers_only(self):
        for path in (SOURCE / "include").rglob("*.h"):
            for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
                with self.subTest(header=str(path), include=included):
                    self.assertTrue(included.startswith("raffia/"))


if __name__ == "__main__":
    unittest.main()
