"""What holds for every test: nothing outside this machine is ever asked."""

import functools
import ipaddress
import os
import socket

import pytest
from asgiref.sync import SyncToAsync
from django.db import connections

# The settings of the shell that runs the tests are not the settings under test.
for name in [name for name in os.environ if name.startswith("MLANGO_")]:
    if not name.startswith("MLANGO_TEST_"):
        del os.environ[name]


class OutsideNetwork(AssertionError):
    """A test tried to reach another machine."""


def is_here(host):
    """Return whether ``host`` (a name or an address, None for any) is this machine."""
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def only_here(function, host_of):
    """Wrap ``function`` so that it refuses any host but this machine."""

    @functools.wraps(function)
    def guarded(*args, **kwargs):
        host = host_of(*args, **kwargs)
        if not is_here(host):
            raise OutsideNetwork(f"A test tried to reach {host!r}. Use a server on 127.0.0.1.")
        return function(*args, **kwargs)

    return guarded


def host_of_socket(sock, address):
    """Return the host that a socket is about to connect to, None for a unix socket."""
    return address[0] if sock.family in (socket.AF_INET, socket.AF_INET6) else None


def host_of_lookup(host, *args, **kwargs):
    """Return the host that is about to be looked up."""
    return host


socket.socket.connect = only_here(socket.socket.connect, host_of_socket)
socket.socket.connect_ex = only_here(socket.socket.connect_ex, host_of_socket)
socket.getaddrinfo = only_here(socket.getaddrinfo, host_of_lookup)


@pytest.fixture(autouse=True)
def no_connection_is_left_behind():
    """Close what an AsyncClient opened in asgiref's thread; a server closes it by itself."""
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()
