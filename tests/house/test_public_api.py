from pathlib import Path

from tests.house.public_api import lines

SNAPSHOT = Path(__file__).with_name("public_api.txt")
ANEW = "python -m tests.house.public_api > tests/house/public_api.txt"


def test_the_public_api_is_the_one_written_down():
    now = list(lines())

    then = SNAPSHOT.read_text().splitlines()

    added = [line for line in now if line not in then]
    gone = [line for line in then if line not in now]
    assert now == then, f"The public API changed.\nNew: {added}\nGone: {gone}\nIf meant: {ANEW}"
