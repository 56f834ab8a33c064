"""Commands whose stdout or stderr cannot be written: streams_test.py PATH/raffia tests/golden"""
import os
import subprocess
import sys
import tempfile
import unittest

import command_case

RAFFIA, GOLDEN = sys.argv[1], sys.argv[2]
TINY = ["--lengths", "16", "--heads", "1", "--head-dim", "8", "--random-features", "4", "--repeats", "1"]


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        lm, translator, classifier = (command_case.golden_model(GOLDEN, name, cls.directory.name)
                                      for name in ("lm-gate", "translate-gate", "classify-rfa"))
        cls.state = os.path.join(cls.directory.name, "state")
        cls.commands = [
            ["info"],
            ["info", "--json"],
            ["generate", lm, "--prompt", "abc", "--tokens", "5", "--logprobs", "--state-out", cls.state],
            ["generate", lm, "--prompt", "abc", "--tokens", "5", "--json"],
            ["translate", translator],
            ["classify", classifier, "--json"],
            ["bench", "attention", "--ops", "rfa", *TINY],
            ["bench", "attention", "--ops", "rfa", "--json", *TINY],
            ["approx", "--length", "16", "--head-dim", "8", "--samples", "4", "--seeds", "1", "--json"],
        ]
        cls.printed = [["--help"], ["generate", "--help"], ["--version"], ["man"], ["completion", "bash"]]

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def run_raffia(self, arguments, redirection="", **streams):
        line = f'exec "$0" "$@" {redirection}'
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        return subprocess.run(["sh", "-c", line, RAFFIA, *arguments], input="abc\n", text=True, timeout=60, **streams)

    def test_commands_succeed_where_stderr_cannot_be_written(self):
        for redirection in ("2>/dev/full", "2>&-"):
            for arguments in self.commands:
                with self.subTest(redirection=redirection, arguments=arguments):
                    done = self.run_raffia(arguments, redirection)
                    self.assertEqual(done.returncode, 0)
                    self.assertNotEqual(done.stdout, "")

    def test_commands_succeed_where_the_reader_of_stderr_is_gone(self):
        for arguments in self.commands:
            with self.subTest(arguments=arguments):
                reader, writer = os.pipe()
                os.close(reader)
                done = self.run_raffia(arguments, stderr=writer)
                os.close(writer)
                self.assertEqual(done.returncode, 0)

    def test_errors_keep_their_exit_code_where_stderr_cannot_be_written(self):
        for redirection in ("2>/dev/full", "2>&-"):
            for code, arguments in ((2, ["trian"]), (2, ["info", "--frobnicate"]), (1, ["generate", "/nonexistent"])):
                with self.subTest(redirection=redirection, arguments=arguments):
                    self.assertEqual(self.run_raffia(arguments, redirection).returncode, code)

    def test_stdout_that_cannot_be_written_is_a_failure(self):
        for redirection in (">/dev/full", ">&-"):
            for arguments in self.commands + self.printed:
                with self.subTest(redirection=redirection, arguments=arguments):
                    done = self.run_raffia(arguments, redirection)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn("raffia: stdout could not be written", done.stderr)

    def test_neither_stream_can_be_written(self):
        for arguments in self.commands + self.printed:
            with self.subTest(arguments=arguments):
                self.assertEqual(self.run_raffia(arguments, ">/dev/full 2>/dev/full").returncode, 1)

    def test_the_state_is_written_without_stdout_and_stderr(self):
        if os.path.exists(self.state):
            os.unlink(self.state)
        self.run_raffia(next(each for each in self.commands if "--state-out" in each), ">/dev/full 2>/dev/full")
        self.assertEqual(self.run_raffia(["state", "info", self.state]).returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
