"""Run a foreign program so that it ends with its parent: ``python tether.py PROGRAM ARGUMENT…``.

A Go binary can't call `die_with_parent` itself. The kernel keeps the request over exec, so this file makes it and then
becomes the program; the process id stays the same.
"""

import os
import sys

from bireme.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])
