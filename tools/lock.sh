#!/bin/sh
# Resolve all dependencies, of every extra and for development, into requirements.lock: exact versions with hashes, for
# every platform, without naming any package index (docs/decisions/0001-requirements-lock-without-hosts.md).
set -eu
cd "$(dirname "$0")/.."
[ -x .venv/bin/uv ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check uv
.venv/bin/uv pip compile pyproject.toml --quiet --all-extras --group dev --universal --python-version 3.11 \
    --generate-hashes --no-header --no-emit-index-url --no-emit-find-links "$@" -o requirements.lock
if grep -n '://' requirements.lock; then
    echo "lock: requirements.lock must not name a host" >&2
    exit 1
fi
