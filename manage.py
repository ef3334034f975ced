#!/usr/bin/env python3
"""Twinpool's one command: `up`, `down`, `status`, `test`, and every Django command. Sets up what it needs first.

This file must stay readable for old Pythons, so that they say what is missing instead of showing a syntax error.
"""

import os
import sys


def main():
    if sys.version_info < (3, 11):
        sys.stderr.write(
            "twinpool: needs Python 3.11 or newer, this is %d.%d: run it with a newer one, e.g. python3.11 manage.py\n"
            % sys.version_info[:2]
        )
        return 1
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in sys.path:
        sys.path.insert(0, here)
    from controlplane.stack.bootstrap import ensure_environment

    refused = ensure_environment(here, sys.argv)
    if refused:
        sys.stderr.write("twinpool: %s\n" % refused)
        return 1
    from controlplane.stack.commands import dispatch

    return dispatch(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
