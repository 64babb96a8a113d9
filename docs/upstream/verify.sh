#!/bin/sh
# Apply the patches to the sources of libp2p 0.8.1, and run the tests of each one without its change
# (they must fail) and with it (they must pass).
#
# usage: docs/upstream/verify.sh [PYTHON]   (an interpreter with libp2p's dependencies, pytest,
#        pytest-trio and factory-boy; default: .venv/bin/python)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v "${1:-.venv/bin/python}")
case $python in /*) ;; *) python=$PWD/$python ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
"$python" -m pip download --quiet --no-binary :all: --no-deps libp2p==0.8.1
tar xzf libp2p-0.8.1.tar.gz --no-same-owner
cd libp2p-0.8.1
export GIT_AUTHOR_NAME=verify GIT_AUTHOR_EMAIL=verify@example.invalid
export GIT_COMMITTER_NAME=verify GIT_COMMITTER_EMAIL=verify@example.invalid
git init --quiet
git add --all --force
git commit --quiet --message "libp2p 0.8.1"

passes() {
    PYTHONPATH=. timeout 300 "$python" -m pytest --quiet -p no:cacheprovider \
        --override-ini addopts= "$@" >"$work/output" 2>&1
}

failed=0
for patch in "$here"/*.patch; do
    git am --quiet "$patch"
    tests=$(git diff --name-only HEAD~ HEAD -- tests)
    git checkout --quiet HEAD~ -- libp2p
    without=fail with=fail
    # shellcheck disable=SC2086
    if passes $tests; then without=pass; fi
    git reset --quiet --hard
    # shellcheck disable=SC2086
    if passes $tests; then with=pass; fi
    echo "$(basename "$patch"): without the change: $without, with it: $with"
    if [ "$without$with" != failpass ]; then failed=1; fi
done
exit $failed
