import pytest
from django.test import Client

from tests.serve.site import make_user
from tests.services.processes import kill, until
from tests.services.servers import COMMANDS, TOKEN, Server, Visitor


@pytest.fixture(scope="module")
def servers(django_db_setup):
    """The servers that the tests of a module have started."""
    started = {}
    yield started
    for server in started.values():
        kill(server.process)


@pytest.fixture
def cookies():
    client = Client()
    client.force_login(make_user())
    return f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"


@pytest.fixture
def visitor_of(servers, cookies, tmp_path_factory):
    """Return a function that returns a visitor of a server by its name."""

    def visitor_of(name):
        if name not in servers:
            servers[name] = Server(name, tmp_path_factory.mktemp("servers"))
        until(servers[name].answers)
        return Visitor(servers[name], cookies)

    yield visitor_of
    for server in servers.values():
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(params=COMMANDS)
def visitor(request, visitor_of):
    return visitor_of(request.param)
