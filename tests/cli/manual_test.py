"""The manual page: manual_test.py PATH/raffia"""
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

RAFFIA = sys.argv[1]


def commands(path=()):
    """Every command without subcommands, with its help: nothing for commands of raffia-train where it is not built."""
    done = subprocess.run([RAFFIA, *path, "--help"], capture_output=True, text=True, timeout=60)
    below = re.findall(r"^  (\w\S*)", done.stdout.partition("\nSubcommands:\n")[2].split("\n\n")[0], re.M)
    if not below:
        yield path, done.stdout
    for name in below:
        yield from commands((*path, name))


class Manual(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = subprocess.run([RAFFIA, "man"], capture_output=True, text=True, check=True, timeout=60).stdout

    def test_it_has_all_sections(self):
        self.assertTrue(self.page.splitlines()[1].startswith(".TH RAFFIA 1 "))
        self.assertEqual(re.findall(r"^\.SH (.*)$", self.page, re.M),
                         ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "ENVIRONMENT", "EXIT STATUS"])

    def test_every_flag_of_help_is_in_it(self):
        seen = 0
        for command, text in commands():
            with self.subTest(" ".join(command)):
                begin = self.page.index(".SS raffia " + " ".join(command) + "\n")
                part = self.page[begin:self.page.find("\n.SS ", begin)]
                for flag in set(re.findall(r"^ +(?:-\w,)?(--[\w-]+)", text, re.M)) - {"--help"}:
                    self.assertIn(rf"\fB{flag}".replace("-", r"\-"), part)
                    seen += 1
        self.assertGreater(seen, 100)

    def test_it_has_the_commands_that_there_are(self):
        self.assertCountEqual(re.findall(r"^\.SS raffia (.*)$", self.page, re.M), [" ".join(command) for command, _ in commands()])

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
