#!/usr/bin/env bash
# Makes sure that there is a Chromium for the tests that open the report of a sweep.
set -euo pipefail

fail() { echo "browser: $*" >&2; exit 1; }

for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null || exit 0
done
command -v apt-get >/dev/null || fail "no Chromium. Install one and run this again"
[ "$(id -u)" -eq 0 ] || fail "no Chromium. Run this, then the same command again:" \
    "sudo apt-get update && sudo apt-get install -y --no-install-recommends chromium"
echo "browser: installing chromium"
export DEBIAN_FRONTEND=noninteractive
install="apt-get -qq -o DPkg::Lock::Timeout=120"
$install update >/dev/null && $install install -y --no-install-recommends chromium >/dev/null ||
    fail "apt-get could not install chromium; its message is above"
