"""Kill points: every boundary of the journal and of each act, at any of which a process may die.

They are counted, and the process sends itself a signal at the one that is fatal, as a power
cut would. To find them all: let it die at the first, the second, and so on until it lives.
"""

import os
import signal
import threading

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

WRITES = ("INSERT", "UPDATE", "DELETE")

_lock = threading.Lock()
_transactions = threading.Condition()
_open = set()  # connections, of any thread, that have a transaction open
_count = 0
_fatal = 0
_number = signal.SIGKILL
_cancel = None
_whom = 0


def meet(fatal, number=signal.SIGKILL, cancel=None, *, with_group=False):
    """Have this process meet a signal at a kill point, by its number or name; at none if 0.

    It meets SIGSTOP only where it holds no lock of the database. With ``cancel`` that is called
    there instead, as somebody else would. ``with_group`` has all processes of its group meet
    the signal with it.
    """
    global _count, _fatal, _number, _cancel, _whom
    _count, _fatal, _number, _cancel = 0, fatal, number, cancel
    _whom = 0 if with_group else os.getpid()


def count():
    """Return how many kill points were come to since this was told what to meet."""
    return _count


def is_passed():
    """Return whether this process has come by its kill point."""
    return _fatal != 0 and _count >= _fatal


def reach(name):
    """Come to a kill point."""
    global _count
    is_kill = _number == signal.SIGKILL and _cancel is None
    if not is_kill and name in ("before a commit", "in a transaction"):
        return
    with _lock:
        _count += 1
        is_fatal = _fatal in (_count, name)
    if not is_fatal:
        return
    if _cancel is not None:
        elsewhere = threading.Thread(target=_cancel)
        elsewhere.start()
        elsewhere.join()
    elif _number == signal.SIGSTOP:
        # Else what another thread has locked would be locked until the process wakes.
        with _transactions:
            _transactions.wait_for(lambda: not _open)
            os.kill(_whom, _number)
    else:
        os.kill(_whom, _number)


def watch_the_database():
    """Make a kill point of the moments before and after each commit of this process."""
    commit, begin_or_end = BaseDatabaseWrapper._commit, BaseDatabaseWrapper.set_autocommit

    def watched(self):
        reach("before a commit")
        commit(self)
        _note(self, is_open=False)
        reach("after a commit")

    def noted(self, autocommit, *args, **kwargs):
        if not autocommit:
            _note(self, is_open=True)
        begin_or_end(self, autocommit, *args, **kwargs)
        if autocommit:
            _note(self, is_open=False)

    BaseDatabaseWrapper._commit, BaseDatabaseWrapper.set_autocommit = watched, noted
    connection_created.connect(_watch, weak=False)


def _note(connection, *, is_open):
    with _transactions:
        (_open.add if is_open else _open.discard)(id(connection))
        _transactions.notify_all()


def _watch(connection, **kwargs):
    if _commits_alone not in connection.execute_wrappers:  # it may have been closed before
        connection.execute_wrappers.append(_commits_alone)


def _commits_alone(execute, sql, params, many, context):
    """Make kill points of a statement that is a transaction of its own."""
    connection = context["connection"]
    if connection.in_atomic_block or not sql.lstrip().startswith(WRITES):
        return execute(sql, params, many, context)
    reach("before a statement")
    _note(connection, is_open=True)
    try:
        result = execute(sql, params, many, context)
    finally:
        _note(connection, is_open=False)
    reach("after a statement")
    return result
