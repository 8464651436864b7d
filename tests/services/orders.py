"""What a test orders of workers: whom to kill, and where, when they come to do a run."""

import json
import os
from pathlib import Path


class Orders:
    """Files, one for each kill.

    A kill is for the process that claims a run when so many have claimed it before.
    """

    def __init__(self, ledger=None):
        self._folder = Path(ledger or os.environ["SITE_LEDGER"]).with_name("orders")
        self._folder.mkdir(exist_ok=True)

    def give(self, uuid, claims, point, *, with_group=False):
        """Order the death at a kill point, of the process or of its whole worker."""
        self._file(uuid, claims).write_text(json.dumps([point, with_group]))

    def take(self, uuid, claims):
        """Return the kill point and who dies there, once; the point is 0 where nobody does."""
        file = self._file(uuid, claims)
        try:
            order = json.loads(file.read_text())
            file.unlink()
        except FileNotFoundError:
            return 0, False
        return order

    def left(self):
        """Return the names of the orders that nobody came for."""
        return [file.name for file in self._folder.glob("*.kill")]

    def note(self, uuid, claims, count):
        """Note how many kill points there were for a process that has lived."""
        self._file(uuid, claims, "count").write_text(str(count))

    def count(self, uuid, claims):
        """Return how many kill points there were for the process that lived."""
        return int(self._file(uuid, claims, "count").read_text())

    def _file(self, uuid, claims, kind="kill"):
        return self._folder / f"{uuid}-{claims}.{kind}"
