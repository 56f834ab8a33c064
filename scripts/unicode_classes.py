#!/usr/bin/env python3
"""Writes src/io/tokenizers/unicode_classes.cc: the letters (L*) and numbers (N*) of Unicode as ranges of code points.

    scripts/unicode_classes.py > src/io/tokenizers/unicode_classes.cc
"""
import sys
import textwrap
import unicodedata


def ranges(initial):
    """[first, last] of each run of code points whose general category begins with `initial`."""
    found = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] == initial:
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    return found


def table(name, initial):
    entries = ", ".join("{0x%X, 0x%X}" % (first, last) for first, last in ranges(initial))
    lines = "\n".join(textwrap.wrap(entries.replace(", 0x", ",~0x"), 124, initial_indent="    ", subsequent_indent="    "))
    return f"constexpr Range {name}[] = {{\n{lines.replace('~', ' ')}}};\n"


print(f"""// Written by scripts/unicode_classes.py from Unicode {unicodedata.unidata_version}.
#include "io/unicode_classes.h"

#include <algorithm>
#include <span>

namespace raffia {{
namespace {{

struct Range {{
  uint32_t first, last;
}};

// clang-format off
{table("kLetters", "L")}
{table("kNumbers", "N")}// clang-format on

bool is_in(std::span<const Range> ranges, uint32_t code) {{
  const auto next = std::ranges::upper_bound(ranges, code, {{}}, &Range::first);
  return next != ranges.begin() && code <= (next - 1)->last;
}}

}}  // namespace

bool is_letter(uint32_t code) {{
  if (code < 0x80) return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
  return is_in(kLetters, code);
}}

bool is_number(uint32_t code) {{
  if (code < 0x80) return code >= '0' && code <= '9';
  return is_in(kNumbers, code);
}}

bool is_space(uint32_t code) {{
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}}

}}  // namespace raffia""")
