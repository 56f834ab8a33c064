"""The manual page: manual_test.py PATH/raffia"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

RAFFIA = sys.argv[1]


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = subprocess.run([RAFFIA, "man"], capture_output=True, text=True, check=True, timeout=60).stdout

    def test_it_has_all_sections(self):
        self.assertTrue(self.page.splitlines()[1].startswith(".TH RAFFIA 1 "))
        self.assertEqual(re.findall(r"^\.SH (.*)$", self.page, re.M),
                         ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "ENVIRONMENT", "EXIT STATUS"])

    def test_every_flag_of_help_is_in_it(self):
        for command in (["generate"], ["bench", "attention"], ["state", "save"], ["classify"]):
            text = subprocess.run([RAFFIA, *command, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
            begin = self.page.index(".SS raffia " + " ".join(command) + "\n")
            part = self.page[begin:self.page.find("\n.SS ", begin)]
            flags = set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)", text, re.M)) - {"--help"}
            self.assertGreater(len(flags), 3)
            for flag in flags:
                self.assertIn(rf"\fB{flag}".replace("-", r"\-"), part)

    def test_no_line_is_a_request_by_accident(self):
        known = {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I", ".nf", ".fi", '.\\"'}
        for line in self.page.splitlines():
            if line.startswith((".", "'")):
                self.assertIn(line.split(" ")[0], known, line)

    @unittest.skipIf(shutil.which("groff") is None, "groff is not installed")
    def test_groff_has_no_warnings(self):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as file:
            file.write(self.page)
            file.flush()
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", file.name], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
