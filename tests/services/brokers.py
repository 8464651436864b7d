"""Brokers of a test's own, which can be killed and come back with nothing."""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest

from tests.services.processes import kill, until

START = 60  # seconds


class Broker:
    """A server on a port of its own. Subclasses say how it is started, and greeted."""

    program: str
    url: str
    greeting: bytes

    def __init__(self, folder):
        if not Path(self.program).exists():
            pytest.skip(f"There is no {self.program} to be killed.")
        self.folder = folder
        self.port = free_port()

    def start(self):
        """Start it with nothing in it, and return when it answers."""
        data = self.folder / uuid4().hex[:8]
        data.mkdir()
        command, environment = self.command(data)
        with (data / "log").open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=data,
                env=os.environ | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self.answers, seconds=START)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=START) as client:
                client.sendall(self.greeting)
                return bool(client.recv(1))
        except ConnectionError:
            return False

    def kill(self):
        kill(self.process)


class Redis(Broker):
    """A Redis that keeps nothing on disk."""

    program = shutil.which("redis-server") or "redis-server"
    greeting = b"PING\r\n"

    def command(self, data):
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [self.program, *given], {}

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"


class RabbitMQ(Broker):
    """A node beside those of the machine: with a name, ports and folders of its own."""

    program = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the other one wants to be a service
    greeting = b"AMQP\x00\x00\x09\x01"

    def command(self, data):
        (data / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        (data / "plugins").write_text("[].")
        return [self.program], {
            "HOME": str(data),
            "RABBITMQ_NODENAME": f"mlango-{uuid4().hex[:8]}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(data / "mnesia"),
            "RABBITMQ_LOG_BASE": str(data / "logs"),
            "RABBITMQ_PID_FILE": str(data / "pid"),
        }

    @property
    def url(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
