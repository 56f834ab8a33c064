"""scripts/setup.sh with stand-ins for apt-get, dpkg and sudo: setup_test.py PATH/setup.sh"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SETUP = sys.argv[1]

# Installed packages are the lines of $STATE/installed; apt-get works for root alone, as the real one does.
STAND_INS = {
    "id": 'echo "$USER_ID"',
    "sudo": 'USER_ID=0 exec "$@"',
    "dpkg": "exit 1  # no version is lower than another",
    "dpkg-query": """
package="${@: -1}"
grep -qx "$package" "$STATE/installed" || exit 1
[[ $* == *Status* ]] && printf installed || printf 99
""",
    "apt-get": """
echo "$*" >>"$STATE/calls"
if [[ $USER_ID != 0 ]]; then echo "E: Could not open lock file - open (13: Permission denied)" >&2; exit 100; fi
[[ $1 == install ]] || exit 0
if [[ $* == *--assume-no* ]]; then
  echo "0 upgraded, 123 newly installed, 0 to remove and 4 not upgraded."
  echo "Need to get 1,017 MB of archives."
  echo "After this operation, 3,210 MB of additional disk space will be used."
  echo "Do you want to continue? [Y/n] N"
  exit 1
fi
for package; do [[ $package == -* || $package == install ]] || echo "$package" >>"$STATE/installed"; done
""",
}


class Setup(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.state = Path(self.directory.name)
        (self.state / "bin").mkdir()
        for name in ("installed", "calls"):
            (self.state / name).touch()
        for name, text in STAND_INS.items():
            path = self.state / "bin" / name
            path.write_text(f"#!/usr/bin/env bash\n{text}\n")
            path.chmod(0o755)

    def setup_lines(self, *arguments, user=1000):
        environment = os.environ | {"PATH": f"{self.state / 'bin'}:{os.environ['PATH']}", "STATE": str(self.state), "USER_ID": str(user),
                                    "TMPDIR": str(self.state)}
        done = subprocess.run(["bash", SETUP, *arguments], capture_output=True, text=True, env=environment, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def installed(self):
        return (self.state / "installed").read_text().split()

    def test_users_of_sudo_and_root_read_what_is_installed_and_how_much(self):
        for user in (1000, 0):
            with self.subTest(user=user):
                (self.state / "installed").write_text("")
                first, *lines = self.setup_lines(user=user)
                self.assertEqual(first, "setup.sh: looks up packages")
                self.assertEqual(lines[0], "setup.sh: installs 123 packages: 1,017 MB to download, 3,210 MB on disk")
                self.assertIn("LibTorch for training (most of it; --no-training leaves it out)", lines[1])
                self.assertEqual(len(lines), 3)
                self.assertIn("libtorch-dev", self.installed())

    def test_without_training_there_is_no_torch(self):
        lines = self.setup_lines("--no-training")
        self.assertNotIn("LibTorch", "".join(lines))
        self.assertIn("libhwy-dev", self.installed())
        self.assertEqual([package for package in self.installed() if "torch" in package], [])

    def test_a_second_run_is_quiet_and_asks_apt_nothing(self):
        self.setup_lines()
        (self.state / "calls").write_text("")
        self.assertEqual(self.setup_lines(), [])
        self.assertEqual((self.state / "calls").read_text(), "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
