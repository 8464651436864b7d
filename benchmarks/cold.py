"""CPU time of a cold ``manage.py agent`` on echo, against ``manage.py check``.

    python benchmarks/cold.py

Each is a process of its own, in the project of project_template/; ``check`` also runs there
without mlango, as in a plain Django project.
"""

import os
import resource
import subprocess
import sys
import tempfile

import ratios

CHECK = ("check",)
AGENT = ("agent", "support.Support", "Where is order 1002?")
ROUNDS = 9
# Points the template at a database of its own, so that nobody's rows are touched.
SETTINGS = """
from config.settings import *
DATABASES["default"]["NAME"] = {name!r}
if {plain}:
    INSTALLED_APPS = [app for app in INSTALLED_APPS if app not in ("mlango", "support")]
    ROOT_URLCONF = "plain_urls"
"""
PLAIN_URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""


def cpu(command, env):
    """Return the CPU time of a command, in microseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, str(ratios.ROOT / "manage.py"), *command]
    subprocess.run(program, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent * 1e6


def environment(folder, name, *, plain=False):
    """Return the environment of a project of its own settings."""
    with open(f"{folder}/{name}.py", "w") as file:
        file.write(SETTINGS.format(name=f"{folder}/db.sqlite3", plain=plain))
    return os.environ | {"DJANGO_SETTINGS_MODULE": name, "PYTHONPATH": folder}


def main(folder):
    env = environment(folder, "cold_settings")
    with open(f"{folder}/plain_urls.py", "w") as file:
        file.write(PLAIN_URLS)
    plain = environment(folder, "plain_settings", plain=True)
    cpu(("migrate",), env)
    works = {
        "manage.py check": (CHECK, env),
        "the same without mlango": (CHECK, plain),
        "manage.py agent, on echo": (AGENT, env),
    }
    times = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(cpu(*work))
    print("a cold command")
    ratios.show(times)


with tempfile.TemporaryDirectory() as folder:
    main(folder)
