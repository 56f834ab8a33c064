#!/usr/bin/env python3
"""Two builds of the command for different CPUs read and write the same files: sessions.py RAFFIA OTHER_RAFFIA

For every golden language model:
- with scalar code, both write the same text and the same bytes of a session. Text and state depend on random draws (the samples of RA, LARA
  and EVA, and of the sampler), so these are the same bits too;
- with the widest vectors of each, results may differ in their last bits. A session of one continues on the other one with the same text.
For every session and stored state, both describe it in the same words.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/cli"))
from command_case import golden_model  # noqa: E402

COMMANDS = [str(Path(command).resolve()) for command in sys.argv[1:3]]


def run(command, *arguments, isa=""):
    done = subprocess.run([command, *arguments], capture_output=True, env=os.environ | {"RAFFIA_MAX_ISA": isa}, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{command} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


def written(command, model, directory, name, isa):
    """(text, path of the session)"""
    session = str(Path(directory) / name)
    return run(command, "generate", model, "--prompt", "a bee", "--tokens", "10", "--seed", "3", "--state-out", session, isa=isa), session


def check(name, directory):
    """What differs between the commands."""
    model = golden_model(SOURCE / "tests/golden", name, directory)
    (text, session), (other_text, other_session) = (written(command, model, directory, f"scalar{i}", "scalar") for i, command in enumerate(COMMANDS))
    if text != other_text:
        yield "text with scalar code"
    if Path(session).read_bytes() != Path(other_session).read_bytes():
        yield "bytes of the session with scalar code"
    for i, command in enumerate(COMMANDS):
        _, session = written(command, model, directory, f"widest{i}", "")
        if len({run(reader, "generate", model, "--prompt", "had", "--tokens", "10", "--state-in", session) for reader in COMMANDS}) > 1:
            yield f"text after the session of {command}"
        if len({run(reader, "state", "info", session, "--json") for reader in COMMANDS}) > 1:
            yield f"description of the session of {command}"


def main():
    if len(COMMANDS) != 2:
        sys.exit(__doc__)
    failures = []
    models = sorted(path.name for path in (SOURCE / "tests/golden").iterdir() if path.name.startswith(("lm-", "llama-")))
    with tempfile.TemporaryDirectory() as directory:
        for name in models:
            failures += [f"{name}: {difference}" for difference in check(name, directory)]
    states = sorted((SOURCE / "tests/compat/0.1/states").glob("*.state"))
    for state in states:
        if len({run(command, "state", "info", str(state), "--json") for command in COMMANDS}) > 1:
            failures.append(f"{state.name}: description")
    for failure in failures:
        print(f"differs: {failure}")
    print(f"{len(models)} models and {len(states)} states, {len(failures)} differences")
    sys.exit(1 if failures or not models or not states else 0)


if __name__ == "__main__":
    main()
