"""Artifact: a file that a run made, kept in a storage of Django."""

from __future__ import annotations

import re
from typing import Any

from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, Storage, default_storage, storages
from django.db import models, transaction
from django.db.models.signals import post_delete
from django.utils.translation import gettext_lazy as _

from mlango.models.owned import OwnedQuerySet

ALIAS = "mlango"
BINARY = "application/octet-stream"
TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


def storage() -> Storage | None:
    """Return where files are kept: STORAGES["mlango"] or the default; None without a place."""
    if ALIAS in storages.backends:
        return storages[ALIAS]
    # Without MEDIA_ROOT that would be the directory where the process was started.
    is_nowhere = (
        isinstance(default_storage, FileSystemStorage) and not default_storage.base_location
    )
    return None if is_nowhere else default_storage


class ArtifactQuerySet(OwnedQuerySet["Artifact"]):
    """Files of runs, and how one is kept."""

    def keep(self, data: bytes, **fields: Any) -> Artifact | None:
        """Keep a file and return its row; None where there is no place for files."""
        place = storage()
        if place is None:
            return None
        # The name is not part of the path: nobody who knows it can guess that.
        path = place.save(f"artifacts/{fields['uuid']}", ContentFile(data))
        return self.create(path=path, size=len(data), **fields)


class Artifact(models.Model):
    """A file that a tool handed over with ``ctx.artifact()``.

    It belongs to the run that its user started, also where a sub-agent made it. The file goes
    with its row.
    """

    uuid = models.CharField(primary_key=True, max_length=32)
    # As with spans, the run's row may be written later.
    trace = models.ForeignKey(
        "mlango.Trace", models.CASCADE, related_name="artifacts", db_constraint=False
    )
    owner_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    name = models.CharField(_("name"), max_length=200)
    mime_type = models.CharField(_("type"), max_length=100)
    size = models.PositiveBigIntegerField(_("size"))
    path = models.CharField(max_length=300, editable=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = ArtifactQuerySet.as_manager()

    class Meta:
        verbose_name = _("artifact")
        verbose_name_plural = _("artifacts")
        base_manager_name = "objects"
        ordering = ("created_at", "uuid")

    def __str__(self) -> str:
        return self.name

    def open(self) -> Any:
        """Return the file, open for reading. Raises OSError if it is gone."""
        place = storage()
        if place is None:
            raise FileNotFoundError("There is no storage for artifacts.")
        return place.open(self.path)

    @property
    def safe_type(self) -> str:
        """The type, if it is one, for a header."""
        return self.mime_type if TYPE.fullmatch(self.mime_type) else BINARY

    def describe(self) -> dict[str, Any]:
        """Return what ``AgentRun.artifacts`` tell, JSON-safe."""
        return {
            "id": self.uuid,
            "name": self.name,
            "mime_type": self.mime_type,
            "size": self.size,
        }


def _delete_file(instance: Artifact, using: str, **kwargs: Any) -> None:
    place = storage()
    if place is not None:
        transaction.on_commit(lambda: place.delete(instance.path), using=using, robust=True)


post_delete.connect(_delete_file, sender=Artifact, dispatch_uid="mlango.artifact")
