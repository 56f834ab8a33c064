#!/usr/bin/env python3
"""exports_test.py INCLUDE_DIR (LIBRARY ARCHIVE)...: the shared libraries export what the public headers declare, and of their internals
only what another one of these libraries uses. ARCHIVE has the same objects with all their names. Prints the counts.
"""
import re
import subprocess
import sys
from pathlib import Path


def symbols(library, *flags):
    """Pairs of type and mangled name."""
    output = subprocess.run(["nm", *flags, library], check=True, capture_output=True, text=True).stdout
    return [tuple(line.split()[-2:]) for line in output.splitlines() if len(line.split()) > 1]


def strong(library, *flags):
    """Mangled names of what is defined there. Weak symbols are templates and inline functions, which every library has for itself; the
    linker adds names of its own."""
    return {name for kind, name in symbols(library, "--defined-only", *flags) if kind in "TDBR" and name.startswith("_Z")}


def demangled(names):
    names = list(names)
    output = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout
    return dict(zip(names, output.splitlines()))


def owner(symbol):
    """What a mark exports as a whole: the class a symbol belongs to, or the function itself. raffia::State of raffia::State::save() const"""
    symbol = re.sub(r"^(vtable|typeinfo|typeinfo name|guard variable) for ", "", symbol)
    parts = re.split(r"[(<[]", symbol)[0].split("::")
    types = [index for index, part in enumerate(parts) if part[:1].isupper()]
    return tuple(parts[: types[0] + 1] if types else parts)


def main():
    declared = set(re.findall(r"\w+", "\n".join(path.read_text() for path in Path(sys.argv[1]).rglob("*.h"))))
    libraries, archives = sys.argv[2::2], sys.argv[3::2]
    exported = {library: strong(library, "-D") for library in libraries}
    used = {library: {name for _, name in symbols(library, "-D", "--undefined-only")} for library in libraries}
    owners = {name: owner(text) for name, text in demangled(set().union(*exported.values())).items()}

    faults = set()
    for library, archive in zip(libraries, archives, strict=True):
        hidden = demangled(sorted(strong(archive) - exported[library]))
        for text in hidden.values():
            if "raffia::" in text and not re.search(r"raffia::(internal|detail)::|\(anonymous namespace\)", text):
                faults.add(f"{library}: hides {text}: RAFFIA_API is missing, or it belongs into raffia::internal")
        by_others = {owners[name] for other in libraries if other != library for name in exported[library] & used[other]}
        found = {owners[name] for name in exported[library]}
        internal = {one for one in found if one[:2] == ("raffia", "internal")}
        for one in sorted(found):
            if one in internal and one not in by_others:
                faults.add(f"{library}: exports {'::'.join(one)}, which no other library uses: RAFFIA_SIBLING_API is not needed")
            if one not in internal and (one[0] != "raffia" or one[-1] not in declared):
                faults.add(f"{library}: exports {'::'.join(one)}, which no public header declares")
        if found == internal:
            faults.add(f"{library}: exports nothing that the public headers declare, expected some")
        print(f"{Path(library).name}: {len(found - internal)} public classes and functions, {len(internal)} for the other libraries")
    print("\n".join(sorted(faults)))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
