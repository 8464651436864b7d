#!/usr/bin/env python
"""Run the project of project_template/ straight from this checkout."""

import os
import sys
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent / "project_template"


def main() -> None:
    """Run one command of that project."""
    sys.path.insert(0, str(TEMPLATE))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line  # after the path is set

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
