#!/usr/bin/env python3
"""Holds the one rule of the parts: a part includes only parts of a lower number (docs/architecture.md). Reads the numbers from the parts' CMakeLists.txt.

usage: layers.py [ROOT]      exits 1 and names each offending line
"""

import pathlib
import re
import sys

DECLARATION = re.compile(r"lockstep_part\(\s*(\w+)\s+NUMBER\s+(\d+)")
INCLUDE = re.compile(r'^\s*#\s*include\s+"lockstep/(\w+)/')


def part_numbers(root):
    numbers = {}
    for cmake in sorted(root.glob("lockstep/*/CMakeLists.txt")):
        for name, number in DECLARATION.findall(cmake.read_text()):
            numbers[name] = int(number)
    return numbers


def violations(root):
    numbers = part_numbers(root)
    if len(numbers) < 5:
        yield f"{root}: found only the parts {sorted(numbers)}; is this the project's root?"
    for path in sorted(root.glob("lockstep/*/**/*")):
        if path.suffix not in {".h", ".cc", ".c"}:
            continue
        own = path.relative_to(root).parts[1]
        if own not in numbers:
            yield f"{path}: part {own} declares no number in its CMakeLists.txt"
            continue
        for line_number, line in enumerate(path.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if not found or found[1] == own:
                continue
            if found[1] not in numbers:
                yield f"{path}:{line_number}: includes the unknown part {found[1]}"
            elif numbers[found[1]] >= numbers[own]:
                yield f"{path}:{line_number}: {own} ({numbers[own]}) may not include {found[1]} ({numbers[found[1]]})"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(violations(root))
    print("\n".join(found) if found else "layers: every include goes to a lower part")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
