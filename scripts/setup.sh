#!/usr/bin/env bash
# Makes .venv ready: the project, its development tools and one Mooncake, at the versions that
# constraints.txt pins. Returns at once when nothing has changed since the last time.
# PYTHON names the interpreter to build .venv with; python3 unless given.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.set-up

say() { echo "set-up: $*"; }
fail() { say "$@" >&2; exit 1; }

check_python() {
    command -v "$python" >/dev/null || fail "no $python. Install Python 3.10 to 3.13"
    "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
        fail "Python 3.10 to 3.13 is needed, $python is $("$python" --version 2>&1)." \
            "Name another one: make demo PYTHON=python3.12"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
}

# The Mooncake build for this machine: the plain one loads CUDA's libraries.
choose_mooncake() {
    if [ -e /proc/driver/nvidia ] || command -v nvidia-smi >/dev/null; then
        extra=mooncake other=mooncake-transfer-engine-non-cuda
    else
        extra=mooncake-cpu other=mooncake-transfer-engine
    fi
}

# Everything that decides what .venv holds, and the place that its scripts name.
fingerprint() {
    { echo "$PWD $version $extra"; cat pyproject.toml constraints.txt scripts/setup.sh; } | sha256sum
}

missing_packages() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "python$version-venv"
    local library
    for library in libibverbs.so.1:libibverbs1 libnuma.so.1:libnuma1 libcurl.so.4:libcurl4; do
        "$python" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "${library%:*}" 2>/dev/null ||
            echo "${library#*:}"
    done
}

install_system_packages() {
    local packages install
    mapfile -t packages < <(missing_packages)
    [ ${#packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        fail "missing: ${packages[*]} (Debian's names). Install them and run this again"
    if [ "$(id -u)" -ne 0 ]; then
        fail "missing system packages. Run this, then the same command again:" \
            "sudo apt-get update && sudo apt-get install -y ${packages[*]}"
    fi
    say "installing system packages: ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    install="apt-get -qq -o DPkg::Lock::Timeout=120"
    $install update >/dev/null && $install install -y "${packages[@]}" >/dev/null ||
        fail "apt-get could not install ${packages[*]}; its message is above"
}

make_venv() {
    if [ "$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' \
        2>/dev/null)" != "$version" ]; then
        "$python" -m venv --clear "$venv"
    fi
}

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --quiet \
        --constraint constraints.txt "$@"
}

install_python_packages() {
    say "1/3 build tools"
    pip_install setuptools
    # Torch comes first and by its exact version, so that no later requirement picks another one.
    say "2/3 torch (the largest download)"
    pip_install "$(grep '^torch==' constraints.txt)"
    say "3/3 kvpool-composer with $extra, and the tools for tests"
    if "$venv/bin/python" -m pip show --quiet "$other" 2>/dev/null; then
        "$venv/bin/python" -m pip uninstall --quiet --yes "$other"
    fi
    pip_install --no-build-isolation --editable ".[$extra,metrics,transformers,serve,report,sweep,dev]"
}

check_python
choose_mooncake
wanted=$(fingerprint)
[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || exit 0
install_system_packages
say "Python $version into $venv; some minutes the first time"
make_venv
rm -f "$stamp"
install_python_packages
echo "$wanted" >"$stamp"
say "done"
