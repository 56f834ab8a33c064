#!/usr/bin/env python3
"""Where a choice is made: the sources that name a kind of estimator, outside of its module and the registry.

    scripts/places.py [KIND...]      all kinds by default

Two things are listed: sources that choose by the kind (EstimatorKind::<kind>), and those that have its name as a string: the default of a flag, a label, a
setting of the same name. Only the first are a failure (exit status 1): such sources should ask for a trait or a function of the registry.
"""
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
KINDS = re.search(r"enum class EstimatorKind[^{]*{([^}]*)}", (SOURCE / "include/raffia/estimator.h").read_text()).group(1).replace(",", " ").split()
HOMES = ("src/estimators/", "src/torch/estimators/", "src/torch/ops/", "src/reference/", "src/kernels/", "include/raffia/")


def places(kind):
    choice = re.compile(rf"EstimatorKind::{kind}\b")
    default = re.compile(rf'"{kind}"')
    for name in subprocess.check_output(["git", "ls-files", "src"], text=True, cwd=SOURCE).split():
        if not name.endswith((".cc", ".h")) or name.startswith(HOMES):
            continue
        for number, line in enumerate((SOURCE / name).read_text().splitlines(), 1):
            code = line.split("//")[0]
            if choice.search(code):
                yield "choice", name, number, line.strip()
            elif default.search(code):
                yield "default", name, number, line.strip()


def main():
    kinds = sys.argv[1:] or KINDS
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        sys.exit(f"places.py: {unknown[0]} is no kind, expected some of {', '.join(KINDS)}")
    failed = False
    for kind in kinds:
        found = list(places(kind))
        choices = [place for place in found if place[0] == "choice"]
        failed = failed or bool(choices)
        print(f"{kind}: {len({place[1] for place in choices})} files choose by it, "
              f"{len({place[1] for place in found if place[0] == 'default'})} have it as a default or label")
        for what, name, number, line in found:
            print(f"  {what} {name}:{number}: {line}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
