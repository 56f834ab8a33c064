"""scripts/arm64_table.py on results of two parts: arm64_table_test.py PATH/arm64_table.py"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = sys.argv[1]


def part(*cases):
    return "<testsuite>" + "".join(f'<testcase name="{name}" status="{status}"/>' for name, status in cases) + "</testsuite>"


class Table(unittest.TestCase):
    def table(self, *parts, files="2 models, 0 differences"):
        """(exit code, lines)"""
        with tempfile.TemporaryDirectory() as directory:
            build = Path(directory)
            (build / "test-results").mkdir()
            for i, text in enumerate(parts):
                (build / "test-results" / f"{i}.xml").write_text(text)
            (build / "info.json").write_text(json.dumps({"compiler": "GCC 12", "highway": "1.0", "isas": ["scalar", "neon"]}))
            (build / "excluded").write_text("A.IsSlow takes an hour\n")
            (build / "sessions.log").write_text(f"...\n{files}\n")
            done = subprocess.run([sys.executable, SCRIPT, directory, "7.2"], capture_output=True, text=True)
            return done.returncode, done.stdout.splitlines()

    def test_counts_a_test_of_two_parts_once(self):
        code, lines = self.table(part(("A.A", "run"), ("Setup", "run")), part(("Setup", "run"), ("A.B", "notrun")))
        self.assertEqual(code, 0)
        self.assertIn("| tests | 3: 2 passed, 0 failed, 1 skipped |", lines)
        self.assertIn("| skipped | `A.B` |", lines)
        self.assertIn("| not run | `A.IsSlow`: takes an hour |", lines)
        self.assertIn("| instruction sets | scalar, neon |", lines)
        self.assertIn("| files of both machines | 2 models, 0 differences |", lines)

    def test_a_failure_is_named_and_is_the_exit_code(self):
        code, lines = self.table(part(("A.A", "run"), ("A.B", "fail")))
        self.assertEqual(code, 1)
        self.assertIn("| tests | 2: 1 passed, 1 failed, 0 skipped |", lines)
        self.assertIn("| failed | `A.B` |", lines)

    def test_files_that_differ_are_a_failure(self):
        self.assertEqual(self.table(part(("A.A", "run")), files="2 models, 10 differences")[0], 1)

    def test_no_results_are_a_failure(self):
        self.assertEqual(self.table()[0], 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
