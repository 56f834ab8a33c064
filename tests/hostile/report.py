"""Counts cases, shows how far a round is, and keeps what failed."""

import os
import shutil
import sys
import threading
import time


class Report:
    def __init__(self, work, total, rerun):
        self.work = work  # directory of the round: inputs of failed cases stay there
        self.total = total
        self.rerun = rerun  # (part, case) -> a command line that runs this case alone
        self.passed = self.failed = 0
        self.begin = time.monotonic()
        self.shown = 0.0
        self.lock = threading.Lock()
        self.is_terminal = sys.stdout.isatty()

    def case_directory(self, part, case):
        path = os.path.join(self.work, f"{part}-{case}")
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path

    def finish(self, part, case, directory, complaints, what):
        """what: the command line, or what was tried."""
        with self.lock:
            if complaints:
                self.failed += 1
                self._tell_failure(part, case, directory, complaints, what)
            else:
                self.passed += 1
                shutil.rmtree(directory, ignore_errors=True)
            self._show_progress(part)

    def _tell_failure(self, part, case, directory, complaints, what):
        self._clear_line()
        print(f"FAILED {part} {case}: {'; '.join(complaints)}")
        print(f"  ran: {what}")
        print(f"  input: {directory}")
        print(f"  again: {self.rerun(part, case)}", flush=True)

    def note(self, text):
        with self.lock:
            self._clear_line()
            print(text, flush=True)

    def _clear_line(self):
        if self.is_terminal and self.shown:
            print("\r\x1b[K", end="")

    def _show_progress(self, part):
        done, now = self.passed + self.failed, time.monotonic()
        if now - self.shown < (0.2 if self.is_terminal else 15) and done < self.total:
            return
        self.shown = now
        left = (now - self.begin) / done * max(self.total - done, 0)
        text = f"{part}: {done} of {self.total}, {self.failed} failed, about {left:.0f} s left"
        print(f"\r\x1b[K{text}" if self.is_terminal else text, end="" if self.is_terminal else "\n", flush=True)

    def close(self):
        """The closing line, and the exit code."""
        self._clear_line()
        if self.failed:
            print(f"inputs of failed cases: {self.work}")
        else:
            shutil.rmtree(self.work, ignore_errors=True)
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0
