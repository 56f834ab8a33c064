#!/usr/bin/env python3
"""Lines of label TAB expression to classify, as in ListOps but short: scripts/listops.py COUNT SEED

An expression is [MAX, [MIN or [MED (the lower median) of 2 to 5 digits or further expressions; its value, 0 to 9, is the label.
The same seed gives the same lines on every machine.
"""
import random
import sys

OPERATIONS = {"[MAX": max, "[MIN": min, "[MED": lambda values: sorted(values)[(len(values) - 1) // 2]}


def expression(choose, depth):
    """Its words and its value."""
    if depth == 0 or (depth < 3 and choose.random() < 0.6):
        digit = choose.randrange(10)
        return [str(digit)], digit
    operation = choose.choice(sorted(OPERATIONS))
    parts = [expression(choose, depth - 1) for _ in range(choose.randint(2, 5))]
    return [operation, *(word for words, _ in parts for word in words), "]"], OPERATIONS[operation]([value for _, value in parts])


def main():
    count, seed = map(int, sys.argv[1:])
    choose = random.Random(seed)
    for _ in range(count):
        words, value = expression(choose, 3)
        print(value, " ".join(words), sep="\t")


if __name__ == "__main__":
    main()
