"""Progress on terminals of several widths, and elsewhere: screen_test.py PATH/raffia"""
import subprocess
import sys
import unittest

import command_case

RAFFIA = sys.argv[1]
# Long enough for some redraws, and with words that do not fit a narrow terminal.
COMMAND = [RAFFIA, "bench", "attention", "--causal", "--ops", "softmax,rfa,rfa_gate,hybrid", "--lengths", "64,256,1024",
           "--repeats", "2", "--threads", "1"]


class Screen(unittest.TestCase):
    def test_no_line_is_as_wide_as_the_terminal(self):
        for columns in (80, 40, 20):
            with self.subTest(columns=columns):
                code, screen = command_case.on_terminal(COMMAND, columns)
                self.assertEqual(code, 0)
                bars = [line for line in command_case.drawn_lines(screen) if "%" in line]
                self.assertGreater(len(bars), 3, screen)
                for bar in bars:  # each takes the place of the one before
                    self.assertLess(len(bar), columns, repr(bar))
                    self.assertNotIn("\n", bar)
                self.assertIn("\r\x1b[K", screen[screen.rindex("%"):])  # and the last is cleared

    def test_a_wide_terminal_has_a_bar(self):
        _, screen = command_case.on_terminal(COMMAND, 120)
        self.assertIn("[" + "." * 30 + "]", screen)

    def test_elsewhere_progress_is_plain_lines(self):
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("\r", done.stderr)
        self.assertNotIn("\x1b", done.stderr)
        self.assertTrue(done.stderr.endswith("\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
