#!/bin/sh
# `./dev demo` builds what is missing and comes here.
exec python3 "$(dirname "$(readlink -f "$0")")/demo.py" "$@"
