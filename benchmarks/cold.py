"""CPU time of a cold ``manage.py agent`` on echo, against ``manage.py check``.

    python benchmarks/cold.py

Both are processes of their own, in the project of project_template/.
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
"""


def cpu(command, env):
    """Return the CPU time of a command, in microseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, str(ratios.ROOT / "manage.py"), *command]
    subprocess.run(program, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent * 1e6


def main(folder):
    with open(f"{folder}/cold_settings.py", "w") as file:
        file.write(SETTINGS.format(name=f"{folder}/db.sqlite3"))
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "cold_settings", "PYTHONPATH": folder}
    cpu(("migrate",), env)
    works = {"manage.py check": CHECK, "manage.py agent, on echo": AGENT}
    times = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, command in works.items():
            times[name].append(cpu(command, env))
    print("a cold command")
    ratios.show(times)


with tempfile.TemporaryDirectory() as folder:
    main(folder)
