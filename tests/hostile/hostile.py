#!/usr/bin/env python3
"""The hostile round: its parts, its options, its counts. See README.md."""

import argparse
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import disks
import inputs
import kills
import names
from commands import Commands
from report import Report
from sound import SoundFiles

PARTS = (inputs.PART, kills.TRAINING, kills.WRITING, disks.FULL, disks.STREAMS, names.PART)
COUNTS = {inputs.PART: 5000, kills.TRAINING: 100, kills.WRITING: 100}
SHORT_COUNTS = {inputs.PART: 300, kills.TRAINING: 4, kills.WRITING: 12}
TORCH_EVERY = 40  # of the damaged inputs, one in so many goes to a command that loads torch: that takes a second


def parse_options():
    default_bin = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "bin")
    parser = argparse.ArgumentParser(prog="tests/hostile/run.sh", description="Damaged files, kills, full disks, closed streams and hostile names.")
    parser.add_argument("--short", action="store_true", help="a part of each: below 90 s on two cores")
    parser.add_argument("--bin", default=default_bin, metavar="DIR", help="directory of the built commands (default: build/bin)")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part alone; may be repeated")
    parser.add_argument("--seed", default="1", help="another seed: other damage (default: 1)")
    parser.add_argument("--count", type=int, help=f"cases of {', '.join(COUNTS)}")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this case alone (with --part); its files are kept")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time (default: one for each CPU)")
    parser.add_argument("--no-memory-limit", action="store_true", help="for binaries with sanitizers, which reserve terabytes of addresses")
    options = parser.parse_args()
    if options.case is not None and len(options.part or ()) != 1:
        parser.error("--case needs one --part")
    if not os.access(os.path.join(options.bin, "raffia"), os.X_OK):
        parser.error(f"{options.bin}: holds no raffia: build it first, or name another directory with --bin")
    return options


class Round:
    def __init__(self, options):
        self.options = options
        self.work = tempfile.mkdtemp(prefix="raffia-hostile-")
        self.commands = Commands(options.bin, not options.no_memory_limit)
        self.report = Report(self.work, 0, self.command_to_repeat)
        if not self.commands.can_train:
            print("left out: training, eval and convert (raffia-train is not built)")
        self.sound = SoundFiles(os.path.join(self.work, "sound"), self.commands)

    def command_to_repeat(self, part, case):
        short = " --short" if self.options.short else ""
        return f"tests/hostile/run.sh --bin {self.options.bin} --part {part} --seed {self.options.seed} --case {case}{short}"

    def numbers(self, part):
        counts = SHORT_COUNTS if self.options.short else COUNTS
        return range(self.options.first, self.options.first + (self.options.count or counts[part]))

    def jobs_of(self, part):
        """[(number, function)]: what can run side by side. Kills of training follow each other, in one job."""
        if part == inputs.PART:
            torch = lambda number: self.commands.can_train and number % TORCH_EVERY == TORCH_EVERY - 1
            return [(n, lambda n=n: inputs.run_case(self.sound, self.report, self.options.seed, n, torch(n))) for n in self.numbers(part)]
        if part == kills.WRITING:
            killer = kills.WriterKills(self.commands, self.sound, self.report, self.options.seed)
            return [(n, lambda n=n: killer.kill(n)) for n in self.numbers(part)]
        listed = {disks.FULL: disks.FullDisks, disks.STREAMS: disks.BrokenStreams, names.PART: names.HostileNames}[part](self.commands, self.sound, self.report)
        if part == disks.FULL and not listed.can_mount:
            self.report.note("left out: small file systems (tmpfs cannot be mounted); limits of file sizes stand for them")
        return [(n, lambda n=n, case=case: listed.run(n, case)) for n, case in enumerate(listed.cases(self.options.short))]

    def kill_training(self, numbers):
        killer = kills.TrainingKills(self.commands, self.report, self.options.seed)
        for number in numbers:
            killer.kill(number)
        killer.close()

    def run(self):
        jobs = []
        parts = self.options.part or PARTS
        if kills.TRAINING in parts and self.commands.can_train:
            numbers = [self.options.case] if self.options.case is not None else list(self.numbers(kills.TRAINING))
            self.report.total += len(numbers)
            jobs.append(lambda: self.kill_training(numbers))
        for part in parts:
            if part == kills.TRAINING:
                continue
            chosen = [job for number, job in self.jobs_of(part) if self.options.case in (None, number)]
            self.report.total += len(chosen)
            jobs += chosen
        pool = ThreadPoolExecutor(self.options.jobs)
        try:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        return self.report.close()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(Round(parse_options()).run())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
