import socket

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_a_test_cannot_reach_another_machine(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET

    with (
        socket.socket(family) as sock,
        pytest.raises(AssertionError, match=f"A test tried to reach '{address}'"),
    ):
        sock.connect((address, 80))


def test_a_test_cannot_look_up_another_machine():
    with pytest.raises(AssertionError, match=r"A test tried to reach 'example\.org'"):
        socket.getaddrinfo("example.org", 443)


def test_a_test_reaches_a_server_of_its_own():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert client.getpeername() == server.getsockname()
