"""The tokens of MLANGO["API_BEARER_TOKENS"], and who asks with one.

Each is a secret, or ``sha256:`` and the hash of one, or a dict that says more::

    {"token": "sha256:9f86…", "user": "ann"}
    {"token": "sha256:60ab…", "name": "billing", "permissions": ["support.ask"]}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any

from mlango.conf import settings
from mlango.exceptions import Misconfigured, did_you_mean

# What looks for leaked secrets can find them by this.
PREFIX = "mlango_"
HASH = "sha256:"
KEYS = ("token", "user", "name", "permissions")
# 128 bits, as token_urlsafe() writes them.
MIN_CHARS = 22
_HASH = re.compile(f"{HASH}[0-9a-fA-F]{{64}}")


@dataclass(frozen=True, slots=True)
class Token:
    """A secret by its hash. Without a ``user``, a program of this ``name`` asks with it."""

    digest: bytes
    user: str = ""
    name: str = "api"
    permissions: frozenset[str] = frozenset()
    # None for a hash, which tells nothing of its secret.
    chars: int | None = None


class Service:
    """Who asks with a token of no user: a program, which owns what it runs.

    It may do what its token says, and has no row, so traces are its by their ``owner_key``.
    """

    is_authenticated = is_active = True
    is_anonymous = is_staff = is_superuser = False

    def __init__(self, token: Token) -> None:
        self.name = token.name
        self.permissions = token.permissions
        self.pk = self.id = f"service:{token.name}"

    def has_perm(self, permission: str, obj: Any = None) -> bool:
        """Return whether the token gives the permission, which none does for one object."""
        return obj is None and permission in self.permissions

    def has_perms(self, permissions: Any, obj: Any = None) -> bool:
        """Return whether the token gives all of them."""
        return all(self.has_perm(each, obj) for each in permissions)

    def get_username(self) -> str:
        """Return what a page calls it."""
        return self.name

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Service) and other.pk == self.pk

    def __hash__(self) -> int:
        return hash(self.pk)


def new_secret() -> str:
    """Return a secret of 256 bits."""
    return PREFIX + token_urlsafe(32)


def hashed(secret: str) -> str:
    """Return what the settings may hold in place of a secret."""
    return HASH + sha256(secret.encode()).hexdigest()


def tokens() -> Iterator[Token]:
    """Yield the tokens of the settings. Raises Misconfigured."""
    for number, given in enumerate(settings.API_BEARER_TOKENS):
        yield token_of(number, given)


def token_with(secret: str) -> Token | None:
    """Return the token of a secret; how long that takes tells nothing of any of them."""
    digest, found = sha256(secret.encode()).digest(), None
    for token in tokens():
        if compare_digest(digest, token.digest):
            found = token
    return found


def program_with(key: str) -> Service | None:
    """Return the program of an ``owner_key``; None if it is no program's that has a token.

    Where it has several, it may do here what it may with each of them.
    """
    found = [token for token in tokens() if not token.user and Service(token).pk == key]
    if not found:
        return None
    permissions = frozenset.intersection(*(token.permissions for token in found))
    return Service(replace(found[0], permissions=permissions))


def token_of(number: int, given: Any) -> Token:
    """Return a token as it stands in the settings. Raises Misconfigured, without the secret."""
    where = f"MLANGO['API_BEARER_TOKENS'][{number}]"
    if isinstance(given, str):
        given = {"token": given}
    if not isinstance(given, dict):
        raise Misconfigured(f"{where} must be a string or a dict, not a {type(given).__name__}.")
    for key in given:
        if key not in KEYS:
            hint, known = did_you_mean(key, KEYS), ", ".join(KEYS)
            raise Misconfigured(f"{where} has no key {key!r}.{hint} Keys are: {known}.")
    if "user" in given and ("name" in given or "permissions" in given):
        raise Misconfigured(f"{where} has a 'user', whose name and permissions count.")
    digest, chars = _digest(where, given.get("token"))
    return Token(
        digest,
        user=_text(where, given, "user", ""),
        name=_text(where, given, "name", "api"),
        permissions=_permissions(where, given.get("permissions", ())),
        chars=chars,
    )


def _digest(where: str, token: Any) -> tuple[bytes, int | None]:
    if not isinstance(token, str) or not token.strip():
        raise Misconfigured(f"{where} must hold a secret, or {HASH!r} and the hash of one.")
    if not token.startswith(HASH):
        return sha256(token.strip().encode()).digest(), len(token.strip())
    if not _HASH.fullmatch(token):
        raise Misconfigured(
            f"{where} must have 64 hexadecimal digits after {HASH!r}. Make one with "
            f"manage.py apitoken."
        )
    return bytes.fromhex(token.removeprefix(HASH)), None


def _text(where: str, given: dict[str, Any], key: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or (key in given and not value):
        raise Misconfigured(f"{where}[{key!r}] must be a string with something in it.")
    return value


def _permissions(where: str, given: Any) -> frozenset[str]:
    if not isinstance(given, list | tuple | set | frozenset) or not all(
        isinstance(each, str) for each in given
    ):
        raise Misconfigured(f"{where}['permissions'] must be a list such as ['support.ask'].")
    return frozenset(given)
