#!/bin/sh
# Make a virtual environment with the pinned versions: tools/setup.sh PYTHON FOLDER [WHEEL]
# mlango itself is this checkout, or the wheel.
# Uses uv when it is there or can be had, else pip, which takes ten times as long.
set -eu
python=$("$1" -c 'import sys; print(sys.executable)')
venv=$2

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
lock=$(ls constraints/py"$(echo "$version" | tr -d .)"-*.txt 2>/dev/null || true)
if [ -z "$lock" ]; then
    echo "No versions are pinned for Python $version; there are:" constraints/*.txt >&2
    echo "Name another Python: make test PYTHON=python3.12" >&2
    exit 1
fi

pinned() { # pinned NAME: the lines of one package in the lock
    awk -v start="$1==" '/^[^ ]/ { on = index($0, start) == 1 } on' "$lock"
}

echo "Setting up $venv: Python $version, $lock"
if [ -e "$venv/pyvenv.cfg" ]; then rm -rf "$venv"; fi
if uv=$(command -v uv) && "$uv" --version >/dev/null 2>&1; then
    "$uv" venv --quiet --python "$python" "$venv"
else
    "$python" -m venv "$venv"
    pinned uv > "$venv/uv.txt"
    uv=$venv/bin/uv
    "$venv/bin/python" -m pip install --quiet --require-hashes -r "$venv/uv.txt" || true
    [ -x "$uv" ] || uv=
fi

install() {
    if [ -n "$uv" ]; then
        "$uv" pip install --quiet --python "$venv/bin/python" "$@"
    else
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    fi
}

install --require-hashes -r "$lock"
# The lock has the build backend too, so nothing comes in without a hash.
install --no-deps --no-build-isolation "${3:---editable=.}"
