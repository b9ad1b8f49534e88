#!/usr/bin/env bash
# Installs what is missing, builds and runs every test. Arguments go to ctest:
#   tests/run.sh                 all tests
#   tests/run.sh -R kernels      those whose names match
#   tests/run.sh -L threads      those with a label
# AKV_PRESET takes another preset than release. The exit status is the result; the last line counts
# test cases (those of GoogleTest one by one).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib.sh"
cd "$AKV_ROOT"
preset="${AKV_PRESET:-release}"
build="build/$preset"

deploy/install-deps.sh
[[ -f $build/build.ninja ]] || step "configure ($build)" cmake --preset "$preset"
step "build ($build)" ninja -C "$build" -j "$(build_jobs)"

# A fresh folder, so that no report of an earlier run is counted.
reports="$PWD/$build/test-reports"
rm -rf "$reports"
mkdir -p "$reports"
status=0
GTEST_OUTPUT="xml:$reports/" ctest --test-dir "$build" -j 2 --output-on-failure \
  --no-tests=error --output-junit "$reports/ctest.junit" "$@" || status=$?
python3 tests/support/count_tests.py "$reports" || status=1
exit "$status"
