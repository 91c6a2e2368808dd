#!/bin/sh
# Installs this checkout with the extras `$2` into the virtual environment whose bin folder is `$1`, and shows progress:
# on a terminal one line that changes, elsewhere a line for each package. Further arguments are options of pip.
set -eu

bin=$1
extras=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT

show() {
    if [ -t 1 ]; then
        printf '\r\033[K  %.70s' "$1"
    else
        printf '  %s\n' "$1"
    fi
}

# The exit status of pip is the last line: a pipe has that of its reader.
{ "$bin/pip" install --disable-pip-version-check --progress-bar off "$@" -e ".[$extras]" 2>&1 && echo OK || echo FAILED; } |
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
        "Collecting "*) count=$((${count:-0} + 1)) && package=${line#Collecting } && show "package $count: ${package%% *}" ;;
        "Installing collected packages"*) show "unpacking ${count:-0} packages" ;;
        esac
    done
if [ -t 1 ]; then printf '\r\033[K'; fi

if [ "$(tail -n 1 "$log")" != "OK" ]; then
    tail -n 20 "$log" >&2
    echo "perdure: the installation failed; see the lines above" >&2
    exit 1
fi
