"""The generated data of scripts/lara_means.sh: listops_test.py PATH/listops.py"""
import statistics
import subprocess
import sys
import unittest

LISTOPS = sys.argv[1]
OPERATIONS = {"[MAX": max, "[MIN": min, "[MED": statistics.median_low}


def lines(count, seed):
    return subprocess.run([sys.executable, LISTOPS, str(count), str(seed)], capture_output=True, text=True, check=True).stdout.splitlines()


def value_of(words):
    """With a stack, unlike the script."""
    stack = []
    for word in words:
        if word == "]":
            start = max(i for i, entry in enumerate(stack) if entry in OPERATIONS)
            stack[start:] = [OPERATIONS[stack[start]](stack[start + 1:])]
        else:
            stack.append(word if word in OPERATIONS else int(word))
    assert len(stack) == 1
    return stack[0]


class Listops(unittest.TestCase):
    def test_labels_are_the_values_of_the_expressions(self):
        for line in lines(200, 3):
            label, expression = line.split("\t")
            self.assertEqual(int(label), value_of(expression.split()), line)

    def test_lines_depend_on_the_seed_alone(self):
        self.assertEqual(lines(5, 1), lines(9, 1)[:5])
        self.assertNotEqual(lines(5, 1), lines(5, 2))
        self.assertEqual(lines(1, 2), ["2\t[MAX 2 [MIN 3 [MIN 6 6 8 ] [MIN 8 4 0 0 5 ] 5 ] ]"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
