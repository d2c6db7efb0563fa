#!/bin/sh
# COMPILER ARGUMENT...: compiles for measuring coverage. RUSTC_WORKSPACE_WRAPPER names it, so that
# what crates of the workspace depend on is as in any other build, and not built again.
exec "$@" -C instrument-coverage
