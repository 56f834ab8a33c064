"""Runs a built command under limits, and judges how it ended."""

import json
import os
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass

GIGABYTE = 1 << 30
EXIT_CODES = {0, 1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM}
# What no user should read: the words of the C++ library and of sanitizers.
FORBIDDEN = (
    "terminate called", "bad_alloc", "std::", "vector::", "basic_string", "map::at", "_Map_base", "stoi", "stod", "Sanitizer",
    "runtime error:", "Segmentation", "core dumped", "Aborted", "c10::", "Exception raised from", "stack smashing", "corrupted",
)
NUMBERS_THAT_MUST_BE = ("probability", "log_probability", "score", "error")


PATIENCE = 6  # seconds of the clock for each of a CPU


@dataclass
class Limits:
    seconds: int = 20  # of a CPU: machines that are busy with other things do not count
    memory: int = 4 * GIGABYTE  # of addresses
    file_bytes: int = None  # of a file that the command writes; a write past it fails


TORCH = Limits(seconds=60, memory=16 * GIGABYTE)  # its libraries alone take 3 GB of addresses


@dataclass
class Outcome:
    argv: list
    cwd: str
    code: int  # negative: the signal that ended it
    out: bytes
    err: bytes
    seconds: float
    timed_out: bool = False

    @property
    def errors(self):
        return self.err.decode(errors="replace")


class Commands:
    """The built commands in a directory."""

    def __init__(self, binaries, with_memory_limit=True):
        self.raffia = os.path.join(os.path.abspath(binaries), "raffia")
        self.can_train = os.access(os.path.join(os.path.abspath(binaries), "raffia-train"), os.X_OK)
        self.with_memory_limit = with_memory_limit
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", LC_ALL="C.UTF-8")

    def shell(self, limits, redirections=""):
        """A prefix for argv that sets limits, then becomes the command."""
        steps = ["ulimit -c 0", f"ulimit -t {limits.seconds}"]
        if self.with_memory_limit:
            steps.append(f"ulimit -v {limits.memory // 1024}")
        if limits.file_bytes is not None:  # in blocks of 512 bytes
            steps.append(f"trap '' XFSZ; ulimit -f {limits.file_bytes // 512}")
        return ["/bin/sh", "-c", "; ".join(steps) + '; exec "$@" ' + redirections, "sh"]

    def start(self, arguments, cwd, limits, redirections="", **streams):
        argv = self.shell(limits, redirections) + [self.raffia] + list(arguments)
        return subprocess.Popen(argv, cwd=cwd, env=self.environment, start_new_session=True, **streams)

    def run(self, arguments, cwd, limits=Limits(), stdin=b"", redirections=""):
        pipe = subprocess.PIPE
        begin = time.monotonic()
        process = self.start(arguments, cwd, limits, redirections, stdin=pipe, stdout=pipe, stderr=pipe)
        timed_out = False
        try:
            out, err = process.communicate(stdin, timeout=PATIENCE * limits.seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            end_group(process)
            out, err = process.communicate()
        return Outcome([self.raffia] + list(arguments), cwd, process.returncode, out, err, time.monotonic() - begin, timed_out)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def printable(word):
    text = word.decode("utf-8", errors="surrogateescape") if isinstance(word, bytes) else word
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(c if c.isprintable() and c not in "'\\" else "".join(f"\\x{b:02x}" for b in os.fsencode(c)) for c in text) + "'"


def command_line(arguments):
    return " ".join(printable(word) for word in arguments)


def as_json(data):
    """The documents on stdout: one, or one a line. Raises ValueError where they are none; NaN is none."""

    def refuse(name):
        raise ValueError(f"{name} in JSON")

    text = data.decode("utf-8")
    try:
        return [json.loads(text, parse_constant=refuse)]
    except ValueError:
        if not text.endswith("\n"):
            raise
        return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def numbers_missing(document):
    """Names of figures that are null where they may not be: a model that computes NaN has to say so."""
    if isinstance(document, dict):
        missing = [name for name in NUMBERS_THAT_MUST_BE if name in document and document[name] is None]
        return missing + [name for value in document.values() for name in numbers_missing(value)]
    if isinstance(document, list):
        return [name for value in document for name in numbers_missing(value)]
    return []


def complaints(outcome, names=(), one_line=True, allowed=EXIT_CODES):
    """Why an end is no good; empty for a good one. names: one of these has to be in the message of a failure."""
    if outcome.timed_out:
        return [f"still running after {outcome.seconds:.0f} s"]
    if outcome.code < 0:
        return [f"ended by {signal.Signals(-outcome.code).name}"]
    found = []
    if outcome.code not in allowed:
        found.append(f"exit code {outcome.code}")
    found += [f"stderr says {word!r}" for word in FORBIDDEN if word in outcome.errors]
    lines = outcome.errors.splitlines()
    messages = [line for line in lines if line.startswith("raffia")]
    if outcome.code in (1, 2):
        if not messages:
            found.append("failed without a message")
        elif one_line and (len(messages) > 1 or lines[-outcome.code] != messages[0]):  # bad usage also says where help is
            found.append(f"{len(messages)} messages and {len(lines)} lines on stderr, expected one message, at the end")
        elif names and outcome.code == 1 and not any(name in messages[0] for name in names):
            found.append(f"the message names none of {', '.join(names)}")
    if any(len(line) > 4000 for line in messages):
        found.append("a message of more than 4000 characters")
    if "--json" in outcome.argv:
        found += json_complaints(outcome)
    return found


def json_complaints(outcome):
    if not outcome.out:
        by_line = "translate" in outcome.argv or "classify" in outcome.argv  # and there may be no lines
        return ["no JSON on stdout"] if outcome.code == 0 and not by_line else []
    try:
        documents = as_json(outcome.out)
    except ValueError as error:
        return [f"stdout is not JSON: {error}"]
    missing = numbers_missing(documents) if outcome.code == 0 else []
    return [f"{missing[0]} is null in JSON, exit code 0"] if missing else []
