"""Whether the process lives, and whether it should be sent requests. No login, no details."""

from __future__ import annotations

import logging

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connections, router
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from mlango.core.threads import in_thread
from mlango.models import Trace
from mlango.runtime.sync import close_connections
from mlango.serve.base import never_atomic
from mlango.serve.drain import drain
from mlango.serve.gate import is_asgi
from mlango.serve.json import document

logger = logging.getLogger("mlango.serve")


@never_atomic
@login_not_required
@require_safe
@never_cache
async def alive(request: HttpRequest) -> HttpResponse:
    """Answer, which is all there is to know; the database is not asked."""
    return document({"status": "ok"})


@never_atomic
@login_not_required
@require_safe
@never_cache
async def ready(request: HttpRequest) -> HttpResponse:
    """Answer with 200 if the database does and the process goes on, else with 503."""
    if drain.has_begun:
        return unready("draining")
    if await in_thread(has_database, is_asgi(request)):
        return document({"status": "ok"})
    return unready("unavailable")


def unready(status: str) -> HttpResponse:
    """Return what tells a load balancer to send requests elsewhere."""
    response = document({"status": status})
    response.status_code = 503
    return response


def has_database(is_own_thread: bool) -> bool:
    """Return whether the database that holds the runs answers."""
    try:
        with connections[router.db_for_write(Trace)].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:  # also InterfaceError, where the connection is closed already
        logger.exception("The database does not answer.")
        return False
    finally:
        if is_own_thread:
            close_connections()
    return True
