"""SIGKILL at random moments: of training, which has to end as if nothing had happened, and of commands that replace a file."""

import json
import os
import shutil
import subprocess
import time

import formats
from commands import TORCH, Limits, command_line, complaints, end_group
from sound import TEXT, TINY

TRAINING, WRITING = "kill-training", "kill-writing"
STEPS, EVERY = 60, 3
TRAIN = ["train", "lm", "--data", "text.txt", "--out", "run", "--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--eval-every", "15", "--log-every", "1", *TINY]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def names_below(directory):
    return [os.path.join(at, name) for at, directories, files in os.walk(directory) for name in directories + files]


def temporary_files(directory):
    marks = (".raffia-", ".unfinished-", ".tmp")
    return [name for name in names_below(directory) if any(mark in os.path.basename(name) for mark in marks)]


def wait_and_kill(process, delay, is_writing, rng):
    """After `delay` seconds at most; half of the time as soon as something is being written. True if it was still running."""
    end, watch = time.monotonic() + delay, rng.random() < 0.5
    while time.monotonic() < end and process.poll() is None:
        if watch and is_writing():
            time.sleep(rng.choice((0, 0, 0.001, 0.003)))
            break
        time.sleep(0.0005 if watch else 0.002)
    running = process.poll() is None
    end_group(process)
    process.wait()
    return running


# Training.


def steps_in(checkpoints):
    if not os.path.isdir(checkpoints):
        return []
    return sorted(int(name[5:]) for name in os.listdir(checkpoints) if name.startswith("step-"))


def damaged_in(checkpoints):
    """Checkpoints that are not what their trainer.json says."""
    found = []
    for step in steps_in(checkpoints):
        directory = os.path.join(checkpoints, f"step-{step:08}")
        try:
            for name, facts in json.loads(read(os.path.join(directory, "trainer.json")))["files"].items():
                data = read(os.path.join(directory, name))
                if len(data) != facts["bytes"] or f"{formats.xxh3(data):016x}" != facts["xxh3"]:
                    found.append(f"step {step}: {name} is damaged")
        except (OSError, ValueError, KeyError) as error:
            found.append(f"step {step}: {error}")
    return found


class Run:
    """A training run in `directory` that is killed and goes on."""

    def __init__(self, commands, directory):
        self.commands, self.directory = commands, directory
        self.checkpoints = os.path.join(directory, "run", "trainer")
        with open(os.path.join(directory, "text.txt"), "w", encoding="utf-8") as file:
            file.write(TEXT)

    def to_its_end(self):
        return self.commands.run([*TRAIN, "--resume"], self.directory, TORCH)

    def start(self):
        null = subprocess.DEVNULL
        return self.commands.start([*TRAIN, "--resume"], self.directory, TORCH, stdin=null, stdout=null, stderr=null)

    def is_writing(self):
        try:
            return any(name.startswith(".unfinished-") for name in os.listdir(self.checkpoints))
        except FileNotFoundError:
            return False

    def steps(self):
        return steps_in(self.checkpoints)

    def result(self):
        """What a finished run is: the weights, all tensors of the last checkpoint, the losses of the log."""
        last = os.path.join(self.checkpoints, f"step-{STEPS:08}")
        files = {"model": read(os.path.join(self.directory, "run", "model.safetensors"))}
        for name in ("model", "optimiser", "carried", "generator"):
            files[f"checkpoint {name}"] = read(os.path.join(last, f"{name}.safetensors"))
        log = [json.loads(line) for line in read(os.path.join(self.directory, "run", "log.jsonl")).splitlines()]
        return {**files, "losses of the log": [(line["step"], line["loss"]) for line in log if "loss" in line]}


class TrainingKills:
    """Kills one run after the other, each until it has come to its end, and compares it with one that was left alone."""

    def __init__(self, commands, report, seed):
        self.commands, self.report, self.seed = commands, report, seed
        whole = Run(commands, report.case_directory(TRAINING, "uninterrupted"))
        begin = time.monotonic()
        outcome = whole.to_its_end()
        if outcome.code != 0:
            raise SystemExit(f"hostile: training failed: {command_line(outcome.argv)}\n{outcome.errors}")
        self.seconds = time.monotonic() - begin
        self.expected = whole.result()
        self.run = None

    def kill(self, number):
        rng = formats.seeded(self.seed, TRAINING, number)
        if self.run is None:
            self.run = Run(self.commands, self.report.case_directory(TRAINING, f"run-{number}"))
        before = self.run.steps()
        running = wait_and_kill(self.run.start(), rng.uniform(0.1, 1.1) * self.seconds, self.run.is_writing, rng)
        found = damaged_in(self.run.checkpoints)
        if before and (not self.run.steps() or self.run.steps()[-1] < before[-1]):
            found.append(f"the checkpoint of step {before[-1]} is lost: there are {self.run.steps()}")
        if not found and (not running or number % 10 == 9):  # it ended by itself, or has been killed often enough
            found = self.compare_end()
        self.finish(number, found)

    def compare_end(self):
        outcome = self.run.to_its_end()
        found = complaints(outcome, one_line=False)
        if outcome.code != 0:
            return found + [f"resuming failed: {outcome.errors[-300:]}"]
        result = self.run.result()
        found += [f"{name} is not that of a run that was left alone" for name in self.expected if result[name] != self.expected[name]]
        found += [f"{os.path.relpath(name, self.run.directory)} is left over" for name in temporary_files(self.run.directory)]
        if not found:
            shutil.rmtree(self.run.directory)
        self.run = None
        return found

    def finish(self, number, found):
        directory = self.report.case_directory(TRAINING, number)
        if found and self.run is not None:
            shutil.copytree(self.run.directory, directory, dirs_exist_ok=True)
            self.run = None
        self.report.finish(TRAINING, number, directory, found, f"killed: raffia {command_line([*TRAIN, '--resume'])}")

    def close(self):
        if self.run is not None:
            shutil.rmtree(self.run.directory, ignore_errors=True)


# Files that are replaced.

PROMPT = "a bad cab had a big dig\n" * 400  # exact attention keeps all of it: a file of megabytes takes a while to write
WRITERS = (
    ["state", "save", "model", "target/s.state", "--prompt-file", "prompt.txt", "--threads", "1"],
    ["generate", "model", "--prompt-file", "prompt.txt", "--tokens", "2", "--greedy", "--state-out", "target/s.state", "--threads", "1"],
    ["quantize", "model", "target/model", "--force"],
)


class WriterKills:
    def __init__(self, commands, sound, report, seed):
        self.commands, self.sound, self.report, self.seed = commands, sound, report, seed
        # By writer: what is there before and after, and how long it takes.
        self.known = [self._learn(writer) for writer in range(len(WRITERS))]

    def _prepare(self, directory):
        shutil.copytree(self.sound.path("llama-softmax"), os.path.join(directory, "model"))
        os.makedirs(os.path.join(directory, "target", "model"))
        with open(os.path.join(directory, "prompt.txt"), "w", encoding="utf-8") as file:
            file.write(PROMPT)
        with open(os.path.join(directory, "target", "s.state"), "wb") as file:
            file.write(b"the old file" * 1000)
        for name in os.listdir(os.path.join(directory, "model")):
            shutil.copy(os.path.join(directory, "model", name), os.path.join(directory, "target", "model", name))

    @staticmethod
    def _contents(directory):
        """Everything below target/, but temporary files."""
        skipped = set(temporary_files(directory))
        inside = [name for name in names_below(os.path.join(directory, "target")) if os.path.isfile(name)]
        return {os.path.relpath(name, directory): read(name) for name in inside if not any(name.startswith(skip) for skip in skipped)}

    def _learn(self, writer):
        directory = self.report.case_directory(WRITING, f"whole-{writer}")
        self._prepare(directory)
        old = self._contents(directory)
        begin = time.monotonic()
        outcome = self.commands.run(WRITERS[writer], directory)
        seconds = time.monotonic() - begin
        if outcome.code != 0:
            raise SystemExit(f"hostile: a sound command failed: {command_line(outcome.argv)}\n{outcome.errors}")
        new = self._contents(directory)
        shutil.rmtree(directory)
        return old, new, seconds

    def kill(self, number):
        rng = formats.seeded(self.seed, WRITING, number)
        writer = number % len(WRITERS)
        old, new, seconds = self.known[writer]
        directory = self.report.case_directory(WRITING, number)
        self._prepare(directory)
        null = subprocess.DEVNULL
        process = self.commands.start(WRITERS[writer], directory, Limits(), stdin=null, stdout=null, stderr=null)
        wait_and_kill(process, rng.uniform(0, 1.2) * seconds, lambda: bool(temporary_files(directory)), rng)
        found = self._mixtures(self._contents(directory), old, new, is_model=WRITERS[writer][0] == "quantize")
        outcome = self.commands.run(WRITERS[writer], directory)
        found += complaints(outcome)
        if outcome.code != 0 or self._contents(directory) != new:
            found.append(f"the next run did not write its file: {outcome.errors[-300:]}")
        found += [f"{os.path.relpath(name, directory)} is left over after the next run" for name in temporary_files(directory)]
        self.report.finish(WRITING, number, directory, found, f"killed: cd {directory}; raffia {command_line(WRITERS[writer])}")

    @staticmethod
    def _mixtures(now, old, new, is_model):
        """Files that are neither the old nor the new one. A model is several files that are moved one after the other: each is whole."""
        found = [f"{name} is neither the old file nor the new one" for name in now if now[name] not in (old.get(name), new.get(name))]
        missing = [name for name in old if name in new and name not in now]
        return found + ([] if is_model else [f"{name} is lost" for name in missing])
