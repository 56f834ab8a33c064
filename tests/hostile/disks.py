"""Full disks and streams that cannot be written: an error and exit code 1, the old file as it was, nothing half written."""

import os
import shutil
import subprocess

from commands import TORCH, Limits, command_line, complaints
from kills import damaged_in, names_below, read, temporary_files
from sound import TINY

FULL, STREAMS = "full-disk", "streams"
ONE = ["--threads", "1"]
# What writes files: all of it goes below out/.
WRITERS = (
    (["state", "save", "lm-softmax-learned", "out/s.state", "--prompt", "a bad cab", *ONE], None),
    (["generate", "llama-softmax", "--prompt-file", "text.txt", "--tokens", "4", "--greedy", "--state-out", "out/s.state", *ONE], None),
    (["quantize", "lm-gate", "out/new"], None),
    (["quantize", "lm-gate", "out/model", "--force"], None),
    (["import", "llama2c", "llama2c/model.bin", "llama2c/tok.bin", "out/new"], None),
    (["import", "hf", "hf-bytes", "out/model", "--force"], None),
    (["approx", "--length", "32", "--head-dim", "8", "--estimators", "rfa:map=positive", "--samples", "4", "--seeds", "1", "--plot", "out/plot", *ONE], "gnuplot"),
    (["train", "lm", "--data", "in/text.txt", "--out", "out/run", "--steps", "4", "--checkpoint-every", "2", *TINY], "train"),
    (["eval", "run-lm", "--data", "in/text.txt", "--segment", "16", "--dump-qkv", "out/qkv.safetensors"], "train"),
)


def contents(directory):
    return {os.path.relpath(name, directory): read(name) for name in names_below(directory) if os.path.isfile(name)}


class FullDisks:
    """Each writer with files of at most so many bytes, and on a file system of so many."""

    def __init__(self, commands, sound, report):
        self.commands, self.sound, self.report = commands, sound, report
        self.can_mount = _can_mount(report.work)
        needed = {None: True, "gnuplot": shutil.which("gnuplot") is not None, "train": commands.can_train}
        self.writers = [writer for writer in WRITERS if needed[writer[1]]]

    def cases(self, short):
        limits = [("file", 512), ("file", 8192)] if short else [("file", size) for size in (0, 512, 1024, 4096, 8192, 16384, 40960)]
        if self.can_mount:
            limits += [("disk", 16384)] if short else [("disk", size) for size in (8192, 16384, 32768, 65536)]
        return [(writer, limit) for writer in range(len(self.writers)) for limit in limits]

    def run(self, number, case):
        writer, (kind, size) = case
        arguments, needs = self.writers[writer]
        directory = self.report.case_directory(FULL, number)
        for name in os.listdir(self.sound.root):
            os.symlink(self.sound.path(name), os.path.join(directory, name))
        out = os.path.join(directory, "out")
        os.mkdir(out)
        limits = TORCH if needs == "train" else Limits()
        if kind == "disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", out], check=True)
        else:
            limits = Limits(limits.seconds, limits.memory, size)
        try:
            found, outcome = self._run(arguments, needs, directory, out, limits)
        finally:
            if kind == "disk":
                subprocess.run(["umount", out], check=True)
        what = f"cd {directory}; {command_line(outcome.argv)}  [{kind} of {size:,} bytes] said: {outcome.errors.strip()[-300:]}"
        self.report.finish(FULL, number, directory, found, what)

    def _run(self, arguments, needs, directory, out, limits):
        old_file = os.path.join(out, "s.state")
        with open(old_file, "wb") as file:
            file.write(b"old")
        if "out/model" in arguments:
            os.mkdir(os.path.join(out, "model"))
            with open(os.path.join(out, "model", "config.json"), "wb") as file:
                file.write(b"{}")
        before = contents(out)
        outcome = self.commands.run(arguments, directory, limits)
        found = complaints(outcome, names=("out/",), one_line=needs is None)
        found += [f"{os.path.relpath(name, directory)} is left over" for name in temporary_files(out)]
        if outcome.code == 1 and needs != "train":
            after = contents(out)
            found += [f"{name} is not what it was" for name in before if after.get(name) != before[name]]
            found += [f"{name} is there though the command failed" for name in after if name not in before]
        if needs == "train":
            found += damaged_in(os.path.join(out, "run", "trainer"))
        return found, outcome


def _can_mount(work):
    place = os.path.join(work, "mount")
    os.makedirs(place, exist_ok=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if shutil.which("mount") is None or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4096", "tmpfs", place], check=False, **quiet).returncode != 0:
        return False
    subprocess.run(["umount", place], check=True)
    return True


# Streams.

BENCH = ["--repeats", "1"]
SAYERS = (
    ["--help"], ["--version"], ["info"], ["info", "--json"], ["completion", "bash"], ["generate", "--help"],
    ["generate", "lm-gate", "--prompt", "ab", "--tokens", "3", *ONE],
    ["generate", "lm-gate", "--prompt", "ab", "--tokens", "3", "--json", *ONE],
    ["generate", "lm-gate", "--prompt", "ab", "--tokens", "3", "--logprobs", *ONE],
    ["generate", "lm-gate", "--interactive", "--tokens", "3", *ONE],
    ["state", "info", "sessions/lm-gate.state"], ["state", "info", "sessions/lm-gate.state", "--json"],
    ["state", "restore", "lm-gate", "sessions/lm-gate.state", "--check", *ONE],
    ["state", "save", "lm-gate", "SPARE/s.state", "--prompt", "ab", *ONE],
    ["translate", "translate-gate", *ONE], ["translate", "translate-gate", "--json", *ONE],
    ["classify", "classify-rfa", "lines.txt", *ONE], ["classify", "image-rfa-1", "images/p5.pgm", "--json", *ONE],
    ["approx", "--input", "arrays/qkv.safetensors", "--samples", "4", "--seeds", "1", *ONE],
    ["bench", "attention", "--lengths", "16", "--heads", "1", "--head-dim", "8", *BENCH],
    ["bench", "step", "--lengths", "16", "--heads", "1", "--head-dim", "8", "--json", *BENCH],
    ["bench", "decode", "--model", "lm-gate", "--depths", "0", "--tokens", "2", *BENCH],
    ["bench", "prefill", "--model", "lm-gate", "--lengths", "4", *BENCH],
    ["bench", "session", "--model", "lm-gate", "--depths", "4", "--prompt-tokens", "8", *BENCH],
    ["bench", "isa", "--ops", "rfa,gelu", "--length", "16", "--heads", "1", "--head-dim", "8", *BENCH],
    ["import", "llama2c", "llama2c/model.bin", "llama2c/tok.bin", "SPARE/model"],
    ["import", "hf", "hf-marks", "SPARE/model", "--json"],
    ["quantize", "lm-gate", "SPARE/model"],
    # What fails has something to say, too.
    ["generate", "nowhere"], ["nonsense"], ["state", "info", "lines.txt"], [],
)
TRAINERS = (
    ["train", "lm", "--data", "in/text.txt", "--out", "SPARE/run", "--steps", "4", *TINY],
    ["eval", "run-lm", "--data", "in/text.txt", "--segment", "16"],
    ["convert", "lm-softmax", "SPARE/converted", "--to", "rfa_gate"],
)
BROKEN = (">/dev/full", ">&-", "2>/dev/full", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-")


class BrokenStreams:
    def __init__(self, commands, sound, report):
        self.commands, self.sound, self.report = commands, sound, report

    def cases(self, short):
        broken = (">/dev/full", "2>/dev/full", "<&- >&- 2>&-") if short else BROKEN
        cases = [(list(sayer), Limits(), redirections) for sayer in SAYERS for redirections in broken]
        if self.commands.can_train:
            cases += [(list(sayer), TORCH, redirections) for sayer in (TRAINERS[:1] if short else TRAINERS) for redirections in broken[:3]]
        return cases

    def run(self, number, case):
        arguments, limits, redirections = case
        directory = self.report.case_directory(STREAMS, number)
        sound = self._run(arguments, limits, os.path.join(directory, "sound"), "")
        broken = self._run(arguments, limits, os.path.join(directory, "broken"), redirections)
        found = complaints(sound, one_line=False)
        # Nobody can be told why it failed, but the exit code is there.
        unheard = "2>" in redirections
        found += [complaint for complaint in complaints(broken, one_line=False) if not (unheard and complaint == "failed without a message")]
        loses_output = ">/dev/full" in redirections.replace("2>", "") or redirections.startswith((">&-", "<&- >&-"))
        expected = 1 if sound.code == 0 and sound.out and loses_output else sound.code
        if "<&-" not in redirections and broken.code != expected:
            found.append(f"exit code {broken.code}, expected {expected}")
        if not loses_output and "<&-" not in redirections and bool(broken.out) != bool(sound.out):
            found.append("stdout is empty")
        self.report.finish(STREAMS, number, directory, found, f"cd {directory}/broken; {command_line(broken.argv)} {redirections}")

    def _run(self, arguments, limits, directory, redirections):
        os.makedirs(os.path.join(directory, "SPARE"))
        for name in os.listdir(self.sound.root):
            os.symlink(self.sound.path(name), os.path.join(directory, name))
        return self.commands.run(arguments, directory, limits, b"a bad cab\n", redirections)
