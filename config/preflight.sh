#!/bin/sh
# Check that this machine can install the project; print the command that installs what is missing.
#
#   preflight.sh            report what is missing, exit 1 if anything is
#   preflight.sh --python   print the Python to use
#
# The only requirements are Python 3.11 to 3.13 with venv and headers, a C compiler and GMP's headers
# (for two small C extensions without wheels, unless WHEELS names a directory that has them). A Java runtime comes with the installation.
set -u

find_python() {
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
        then
            command -v "$name"
            return
        fi
    done
}

python=$(find_python)
if [ "${1:-}" = "--python" ]; then
    echo "$python"
    exit 0
fi

packages=""
compiler=""
if [ -z "$python" ]; then
    packages="python3 python3-venv"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    packages="python3-venv"
fi
has_python_header() {
    "${python:-false}" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}
has_header() { echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1; }
if [ -z "${WHEELS:-}" ]; then
    has_python_header || compiler="$compiler python3-dev"
    command -v cc >/dev/null 2>&1 || compiler="$compiler gcc libc6-dev"
    has_header gmp.h || compiler="$compiler libgmp-dev"
elif [ -n "$python" ]; then
    tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    for package in cbrrr fastecdsa; do
        ls "$WHEELS/$package"-*-"$tag"-*.whl >/dev/null 2>&1 && continue
        echo "WHEELS=$WHEELS has no wheel of $package for $python ($tag). Releases have them, and so has the dist/" >&2
        echo "that 'make dist' leaves on a machine with a compiler and the same version of Python." >&2
        exit 1
    done
fi
packages="$packages$compiler"

[ -z "$packages" ] && exit 0

if [ "$(id -u)" = 0 ]; then sudo=""; else sudo="sudo "; fi
echo "Some required system packages are missing. On Debian or Ubuntu, install them with:" >&2
echo >&2
echo "    ${sudo}apt-get update && ${sudo}apt-get install -y$(echo " $packages" | tr -s ' ')" >&2
echo >&2
[ -n "$compiler" ] && echo "(Without a compiler: make install WHEELS=DIRECTORY; see docs/operations.md.)" >&2
[ -z "$python" ] && echo "(Python 3.11, 3.12 or 3.13 is required. To use one that is not on the PATH, set PYTHON=/path/to/python.)" >&2
exit 1
