"""The clock of the database: the one that all processes of a site share."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings
from django.db.models.functions import Now as DjangoNow


class Now(DjangoNow):
    """The time by the database's clock, as the site keeps its times.

    SQLite tells the time of UTC. Without USE_TZ a site keeps the time of its TIME_ZONE, which
    Django makes that of the process.
    """

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        if django_settings.USE_TZ:
            return super().as_sqlite(compiler, connection, **extra)
        template = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW', 'localtime')"
        return self.as_sql(compiler, connection, template=template, **extra)
