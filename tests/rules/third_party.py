"""Every shared library that a daemon links, directly or not, is named in THIRD_PARTY.md."""

import re
import subprocess

# Names of the table's column `library`, in backquotes: libzmq.so.5.
_NAMED = re.compile(r"`(lib[^`\s]+\.so[^`\s]*|ld-linux[^`\s]*)`")
# The kernel's, not a file.
_VIRTUAL = re.compile(r"^(linux-vdso|linux-gate)\.")


def linked_libraries(binaries):
    """Sonames of all libraries that the dynamic linker loads for the binaries."""
    names = set()
    for binary in binaries:
        output = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
        for line in output.splitlines():
            name = line.split()[0].rsplit("/", 1)[-1]
            if not _VIRTUAL.match(name):
                names.add(name)
    return names


def check(page, libraries):
    """Faults: libraries that the page does not name."""
    named = set(_NAMED.findall(page))
    return [f"THIRD_PARTY.md does not name {library}, which is linked"
            for library in sorted(libraries - named)]
