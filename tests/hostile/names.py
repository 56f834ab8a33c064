"""Hostile names wherever a command takes one: nothing runs, nothing crashes, files get exactly these names, and JSON stays JSON."""

import os
import shutil

from commands import TORCH, Limits, command_line, complaints

PART = "names"
CANARY = "canary"
NAMES = (
    b"new\nline", b"a'quote", b'a"quote', b"back`touch canary`tick", b"$(touch canary)", b"a;touch canary;", b"a b  c", b"-dash", b"--json",
    b"not\xffutf8\xc3", b"tab\tand\x1b[31mred", b"'; system 'touch canary'; '", b"x'\nsystem \"touch canary\"\n#", b"x\n!touch canary\n", b"back\\slash\\",
    b"*?[a]{b}", b"| touch canary", b"&& touch canary #", b"%s%n%d", "\u00e9\u4e2d\U0001f600".encode(), b"n" * 200, b"x\"; system(\"touch canary\"); \"",
    b"{0}{}", b"~", b".hidden", b"name.", b"a=b,c:d",
)
ONE = [b"--threads", b"1"]
SMALL = b"--length 16 --head-dim 8 --estimators rfa:map=positive --samples 4 --seeds 1 --threads 1".split()
BENCH = b"--repeats 1 --json".split()
RUN = b"--tokenizer byte --layers 1 --width 16 --heads 2 --batch 2 --segment 16 --threads 1 --steps 2 --json".split()


def option(name, value):
    return [b"--" + name + b"=" + value]


# (what is made of the name beforehand, the command, whether it needs torch). Positional names follow --, so that a dash is no flag.
SLOTS = {
    "generate model": ("lm-gate", lambda name: [b"generate", b"--prompt", b"ab", b"--tokens", b"2", b"--json", *ONE, b"--", name], False),
    "generate prompt": (None, lambda name: [b"generate", b"lm-gate", *option(b"prompt", name), b"--tokens", b"2", b"--json", *ONE], False),
    "generate stop": (None, lambda name: [b"generate", b"lm-byte", b"--prompt", b"ab", *option(b"stop", name), b"--tokens", b"2", b"--json", *ONE], False),
    "generate prompt file": ("lines.txt", lambda name: [b"generate", b"lm-gate", *option(b"prompt-file", name), b"--tokens", b"2", b"--json", *ONE], False),
    "generate state out": (None, lambda name: [b"generate", b"lm-gate", b"--prompt", b"a", b"--tokens", b"2", *option(b"state-out", name), b"--json", *ONE], False),
    "generate state in": ("sessions/lm-gate.state", lambda name: [b"generate", b"lm-gate", *option(b"state-in", name), b"--tokens", b"2", b"--json", *ONE], False),
    "state info": ("sessions/lm-gate.state", lambda name: [b"state", b"info", b"--json", b"--", name], False),
    "state info of text": ("lines.txt", lambda name: [b"state", b"info", b"--json", b"--", name], False),
    "state save": (None, lambda name: [b"state", b"save", b"--prompt", b"ab", b"--json", *ONE, b"--", b"lm-gate", name], False),
    "state restore": ("sessions/lm-gate.state", lambda name: [b"state", b"restore", b"--json", *ONE, b"--", b"lm-gate", name], False),
    "translate model": ("translate-gate", lambda name: [b"translate", b"--json", *ONE, b"--", name], False),
    "classify file": ("lines.txt", lambda name: [b"classify", b"--json", *ONE, b"--", b"classify-rfa", name], False),
    "classify model": ("classify-rfa", lambda name: [b"classify", b"--json", *ONE, b"--", name, b"lines.txt"], False),
    "quantize from": ("lm-gate", lambda name: [b"quantize", b"--json", b"--", name, b"OUT"], False),
    "quantize to": (None, lambda name: [b"quantize", b"--json", b"--", b"lm-gate", name], False),
    "import llama2c": ("llama2c/model.bin", lambda name: [b"import", b"llama2c", b"--json", b"--", name, b"llama2c/tok.bin", b"OUT"], False),
    "import hf from": ("hf-bytes", lambda name: [b"import", b"hf", b"--json", b"--", name, b"OUT"], False),
    "import hf to": (None, lambda name: [b"import", b"hf", b"--json", b"--", b"hf-marks", name], False),
    "approx input": ("arrays/qkv.safetensors", lambda name: [b"approx", *option(b"input", name), b"--samples", b"4", b"--seeds", b"1", b"--json"], False),
    "approx estimator": (None, lambda name: [b"approx", *option(b"estimator", name), b"--length", b"16", b"--json"], False),
    "bench model": ("lm-gate", lambda name: [b"bench", b"decode", *option(b"model", name), b"--depths", b"0", b"--tokens", b"2", *BENCH], False),
    "approx plot": (None, lambda name: [b"approx", *SMALL, *option(b"plot", name), b"--json"], False),
    "approx matrix": (None, lambda name: [b"approx", *SMALL, *option(b"show-matrix", name), b"--json"], False),
    "bench attention plot": (None, lambda name: [b"bench", b"attention", b"--lengths", b"16,32", b"--heads", b"1", b"--head-dim", b"8", *option(b"plot", name), *BENCH], False),
    "bench decode plot": (None, lambda name: [b"bench", b"decode", b"--model", b"lm-gate", b"--depths", b"0,4", b"--tokens", b"2", *option(b"plot", name), *BENCH], False),
    "train out": (None, lambda name: [b"train", b"lm", b"--data", b"text.txt", *option(b"out", name), *RUN], True),
    "train data": ("text.txt", lambda name: [b"train", b"lm", *option(b"data", name), b"--out", b"OUT", b"--no-plot", *RUN], True),
    "train config": ("text.txt", lambda name: [b"train", b"lm", *option(b"config", name), b"--out", b"OUT", *RUN], True),
    "eval model": ("run-lm", lambda name: [b"eval", b"--data", b"text.txt", b"--segment", b"16", b"--json", b"--", name], True),
    "eval dump": (None, lambda name: [b"eval", b"run-lm", b"--data", b"text.txt", b"--segment", b"16", *option(b"dump-qkv", name)], True),
    "convert to": (None, lambda name: [b"convert", b"--to", b"rfa_gate", b"--", b"lm-softmax-learned", name], True),
}
MAY_BE_CREATED = (b"OUT",)


class HostileNames:
    def __init__(self, commands, sound, report):
        self.commands, self.sound, self.report = commands, sound, report

    def cases(self, short):
        cases = []
        for place, (slot, (_, _, needs_torch)) in enumerate(SLOTS.items()):
            if needs_torch and not self.commands.can_train:
                continue
            if needs_torch:
                chosen = NAMES[place % 3 + 11 : place % 3 + 12] if short else NAMES[place % 3 :: 3]
            else:
                chosen = NAMES[place % 4 :: 4] if short else NAMES
                if "plot" in slot or "matrix" in slot:  # their names go through another program
                    chosen = NAMES[9:15] if short else NAMES
            cases += [(slot, name) for name in chosen]
        return cases

    def run(self, number, case):
        slot, name = case
        source, command, needs_torch = SLOTS[slot]
        directory = self.report.case_directory(PART, number)
        for entry in os.listdir(self.sound.root):
            os.symlink(self.sound.path(entry), os.path.join(directory, entry))
        if source is not None:
            self._copy(source, os.path.join(os.fsencode(directory), name))
        before = set(os.listdir(os.fsencode(directory)))
        outcome = self.commands.run(command(name), directory, TORCH if needs_torch else Limits(), b"a bad\n")
        outcome.argv = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in outcome.argv]
        found = complaints(outcome)
        fresh = set(os.listdir(os.fsencode(directory))) - before
        if os.path.exists(os.path.join(directory, CANARY)):
            found.append("a command in the name was run")
        found += [f"{entry!r} was made" for entry in fresh if not entry.startswith((name[:190].rstrip(b"."), *MAY_BE_CREATED)) or entry.endswith(b".tmp")]
        if source is None and outcome.code == 0 and ("out" in slot or " to" in slot or "plot" in slot) and not fresh:
            found.append("exit code 0, but nothing of that name is there")
        if source is not None and outcome.code == 2 and not name.startswith(b"-"):
            found.append("a file that is there is bad usage")
        what = f"{slot}: cd {directory}; {command_line([self.commands.raffia, *command(name)])} said: {outcome.errors.strip()[-200:]}"
        self.report.finish(PART, number, directory, found, what)

    def _copy(self, source, target):
        source = os.fsencode(self.sound.path(source))
        if os.path.isdir(source):
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
