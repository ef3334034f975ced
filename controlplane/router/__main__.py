"""python -m controlplane.router: the data plane, compiled if a build of this very source is there (router.compiled)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from controlplane.router import compiled


def main(argv: Sequence[str]) -> int:
    note = None if compiled.INTERPRETED in argv else compiled.put_in_place()
    from controlplane.router import command  # only now: this imports what may be compiled

    return command.main(list(argv), note)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
