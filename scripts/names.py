#!/usr/bin/env python3
"""Checks the naming rules of .clang-tidy on the sources that the last commits touched: scripts/names.py [COMMITS]

Reads how each source is compiled from build/asan (clang) or build (what needs torch). Exit status 1 if a name breaks a rule.
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMITS = 10
SOURCES_AT_MOST = 16  # two to ten seconds each


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def touched_sources(commits):
    """The sources of the last commits that still exist, those touched last first."""
    names = git("log", f"-{commits}", "--name-only", "--format=", "--", "*.cc").splitlines()
    return [name for name in dict.fromkeys(names) if name and Path(name).exists()]


def compile_commands():
    """Absolute file name -> entry of a compilation database. Clang cannot read what gcc precompiled, and gets the header itself."""
    entries = {}
    for database in ("build/compile_commands.json", "build/asan/compile_commands.json"):
        if not Path(database).exists():
            continue
        for entry in json.loads(Path(database).read_text()):
            words = entry["command"].split()
            kept = []
            for before, word in zip([""] + words, words):
                if word == "-include" or (before == "-include" and "cmake_pch" in word):
                    continue
                if word in ("-Winvalid-pch", "-fpch-preprocess") or word.startswith("-Wno-"):
                    continue
                kept.append(word)
            if "raffia_torch_objects.dir/cmake_pch.hxx" in entry["command"]:
                kept.insert(1, "-include torch/libtorch.h")
            entries[entry["file"]] = entry | {"command": " ".join(kept)}
    return entries


def main():
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS
    known = compile_commands()
    sources = [str(Path(name).resolve()) for name in touched_sources(commits)]
    sources = [source for source in sources if source in known]
    checked, left_out = sources[:SOURCES_AT_MOST], sources[SOURCES_AT_MOST:]
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "compile_commands.json").write_text(json.dumps([known[source] for source in checked]))

        def check(source):
            return subprocess.run(
                ["clang-tidy-14", "-p", directory, "--quiet", "--checks=-*,readability-identifier-naming", "--warnings-as-errors=*", source],
                capture_output=True, text=True)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(check, checked))
    failed = [(source, result) for source, result in zip(checked, results) if result.returncode != 0]
    for source, result in failed:
        print(result.stdout or f"{source}: {result.stderr}")
    print(f"names: {len(checked)} sources of the last {commits} commits checked, {len(failed)} with names that break the rules"
          + (f"; {len(left_out)} more not checked" if left_out else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
