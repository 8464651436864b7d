"""``mlango`` and ``python -m mlango`` on the command line."""

from __future__ import annotations

import sys

from mlango import startproject


def main() -> None:
    """Run the command named by the arguments."""
    sys.exit(startproject.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
