#!/usr/bin/env python3
"""The table of docs/arm.md, for scripts/test_arm64.sh: arm64_table.py BUILD_DIRECTORY QEMU_VERSION

Exit code 1: a test failed, or files differ.
"""
import json
import sys
import xml.etree.ElementTree
from pathlib import Path


def main():
    build, qemu = Path(sys.argv[1]), sys.argv[2]
    status, skipped, failed = {}, [], []
    for part in sorted((build / "test-results").glob("*.xml")):
        for case in xml.etree.ElementTree.parse(part).iter("testcase"):  # what others need to have run is in several parts
            status[case.get("name")] = case.get("status")
    for name, how in sorted(status.items()):
        if how == "run":
            continue
        (failed if how == "fail" else skipped).append(name)
    files = (build / "sessions.log").read_text().splitlines()[-1]
    info = json.loads((build / "info.json").read_text())
    excluded = [line.split(" ", 1) for line in (build / "excluded").read_text().splitlines() if line]
    rows = [
        ("compiler, emulator", f"{info['compiler']} (cross), qemu-user {qemu}, Highway {info['highway']}"),
        ("instruction sets", ", ".join(info["isas"])),
        ("tests", f"{len(status)}: {len(status) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped"),
        ("failed", ", ".join(f"`{name}`" for name in failed) or "none"),
        ("skipped", ", ".join(f"`{name}`" for name in skipped) or "none"),
        ("not run", "; ".join(f"`{name}`: {reason}" for name, reason in excluded) or "none"),
        ("files of both machines", files),
    ]
    print("\n| | |\n|:--|:--|")
    for name, what in rows:
        print(f"| {name} | {what} |")
    print()
    sys.exit(1 if failed or not status or not files.endswith(" 0 differences") else 0)


if __name__ == "__main__":
    main()
