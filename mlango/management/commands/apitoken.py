"""``manage.py apitoken``: make a token for programs that ask agents over HTTP."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from mlango.runtime.tokens import hashed, new_secret


class Command(BaseCommand):
    """Prints a new secret and what the settings hold of it."""

    help = "Make a bearer token: the secret for the client, and its hash for the settings."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        secret = new_secret()
        self.stdout.write(f"For the client, who sends it as 'Authorization: Bearer …':\n{secret}")
        self.stdout.write(f"\nFor MLANGO['API_BEARER_TOKENS']:\n{hashed(secret)}")
