#!/bin/sh
# Pin the newest allowed versions, with hashes, for each pair of Python and Django.
set -eu
uv=$1
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT

for pair in 3.11:5.2 3.12:6.1 3.13:6.1; do
    python=${pair%:*} django=${pair#*:}
    file=constraints/py$(echo "$python" | tr -d .)-django$(echo "$django" | tr -d .).txt
    echo "django==$django.*" > "$pins"
    rm -f "$file" # or its versions would be kept
    "$uv" pip compile pyproject.toml --constraint "$pins" --output-file "$file" --quiet \
        --extra dev --extra litellm --extra postgres --extra server \
        --extra channels --extra redis --extra celery --extra openapi \
        --universal --python-version "$python" --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links
    echo "$file: $(grep -c '^[a-z]' "$file") packages"
done
