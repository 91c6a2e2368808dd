#!/bin/sh
# shellcheck disable=SC2154 # the settings are in a file that this node writes
#
# The commands that every machine has before `setup`: python, pip, uv, conda and sudo. `toolbox.py` installs this file
# under each of these names, and writes the settings:
#
#   perdure_base         the Python of the machine's image; empty: the python3 on PATH, if there is one
#   perdure_env          the machine's environment, made by the first command that needs it
#   perdure_python       the version of Python that the task wants; empty: that of the image
#   perdure_own_env      not empty: use the environment whatever else is on PATH
#   perdure_parent_site  packages of the image's Python that an environment on it would not see
#   perdure_has_pip      not empty: the image's Python has pip
#
# All variables have this prefix: the commands inherit every exported variable of the user's, whatever its name.
# Until something is installed, `python` is that of the image, and costs no more than the start of this shell.

perdure_tools=@TOOLS@
# shellcheck source=/dev/null
. "$perdure_tools/settings"
perdure_name=${0##*/}

say() {
    echo "perdure: $*" >&2
}

# Sets `uv` to the program. The agent fetches it from the controller when the first command asks for it.
find_uv() {
    perdure_uv=$perdure_tools/uv
    [ -x "$perdure_uv" ] && return 0
    : >"$perdure_tools/uv.wanted"
    perdure_tries=0
    while ! [ -x "$perdure_uv" ]; do
        if [ -s "$perdure_tools/uv.failed" ]; then
            perdure_uv=$(on_image uv) && return 0
            say "uv is not available on this machine: $(cat "$perdure_tools/uv.failed")"
            return 1
        fi
        perdure_tries=$((perdure_tries + 1))
        if [ "$perdure_tries" -gt 3000 ]; then
            say "uv is not available: the agent did not fetch it within five minutes"
            return 1
        fi
        sleep 0.1
    done
}

# A command that the image has under this name, beside ours.
on_image() {
    perdure_old_ifs=$IFS
    IFS=:
    for perdure_folder in $PATH; do
        if [ "$perdure_folder" != "$perdure_tools/bin" ] && [ -x "$perdure_folder/$1" ] && ! [ -d "$perdure_folder/$1" ]; then
            IFS=$perdure_old_ifs
            echo "$perdure_folder/$1"
            return 0
        fi
    done
    IFS=$perdure_old_ifs
    return 1
}

# PATH without our commands: uv runs every python that it finds there.
image_path() {
    perdure_old_ifs=$IFS
    IFS=:
    perdure_path=
    for perdure_folder in $PATH; do
        case $perdure_folder in
        "$perdure_tools/bin" | "$perdure_env/bin") ;;
        *) perdure_path=$perdure_path$perdure_folder: ;;
        esac
    done
    IFS=$perdure_old_ifs
    echo "${perdure_path%:}"
}

# make_env FOLDER PYTHON [OPTION ...]: a virtual environment with pip, unless it is there.
make_env() {
    perdure_folder=$1 perdure_wanted=$2
    shift 2
    [ -e "$perdure_folder/.complete" ] && return 0
    find_uv || return 1
    mkdir -p "${perdure_folder%/*}" || return 1
    (
        if command -v flock >/dev/null; then flock 9; fi
        [ -e "$perdure_folder/.complete" ] && exit 0
        rm -rf "$perdure_folder"
        if [ -n "${PIP_INDEX_URL-}" ] && [ -z "${UV_DEFAULT_INDEX-}${UV_INDEX_URL-}" ]; then
            export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
        fi
        unset VIRTUAL_ENV
        set -- venv --quiet --no-project "$@" --python "$perdure_wanted" "$perdure_folder"
        if ! perdure_words=$(PATH=$(image_path) "$perdure_uv" "$@" 2>&1 </dev/null); then
            say "making the Python environment $perdure_folder failed:"
            echo "$perdure_words" >&2
            exit 1
        fi
        if [ "$perdure_folder" = "$perdure_env" ] && [ -n "$perdure_parent_site" ] && [ -z "$perdure_python" ]; then
            for perdure_site in "$perdure_folder"/lib/python*/site-packages; do
                echo "import site; site.addsitedir('$perdure_parent_site')" >"$perdure_site/_perdure_image.pth"
            done
        fi
        : >"$perdure_folder/.complete"
    ) 9>"$perdure_folder.lock"
}

# The machine's environment. It sees the packages of the image, unless the task wants another Python.
make_machine_env() {
    if [ -n "$perdure_python" ]; then
        make_env "$perdure_env" "$perdure_python" --seed
    elif [ -n "$perdure_has_pip" ]; then
        make_env "$perdure_env" "$perdure_base" --system-site-packages
    else
        make_env "$perdure_env" "$perdure_base" --system-site-packages --seed
    fi
}

# Whether the working folder, or one above it, has an environment of its own, as `uv venv` makes it.
has_project_env() {
    perdure_folder=$PWD
    while [ -n "$perdure_folder" ]; do
        [ -e "$perdure_folder/.venv/pyvenv.cfg" ] && return 0
        perdure_folder=${perdure_folder%/*}
    done
    return 1
}

run_python() {
    case "${1-} ${2-}" in
    "-m pip" | "-m venv" | "-m ensurepip") perdure_needs_env=1 ;;
    *) perdure_needs_env=$perdure_python ;;
    esac
    if [ -e "$perdure_env/.complete" ] || [ -n "$perdure_needs_env" ]; then
        make_machine_env || exit 127
        exec "$perdure_env/bin/python" "$@"
    fi
    if [ -z "$perdure_base" ]; then
        say "this image has no Python; ask for one: runtime: {python: \"3.11\"}"
        exit 127
    fi
    exec "$perdure_base" "$@"
}

# The arguments without `--system`: the Python of the system is the machine's environment.
run_uv() {
    find_uv || exit 127
    [ -x "$perdure_env/bin/uv" ] && perdure_uv=$perdure_env/bin/uv # a version of the user's own
    case ${1-} in
    pip)
        perdure_is_system=
        for perdure_word; do
            shift
            if [ "$perdure_word" = --system ]; then perdure_is_system=1; else set -- "$@" "$perdure_word"; fi
        done
        unset UV_SYSTEM_PYTHON
        if [ -z "${VIRTUAL_ENV-}" ] || [ "$VIRTUAL_ENV" = "$perdure_env" ]; then
            if [ -z "$perdure_is_system" ] && has_project_env; then
                unset VIRTUAL_ENV
            else
                make_machine_env || exit 127
                export VIRTUAL_ENV="$perdure_env"
            fi
        fi
        ;;
    *)
        [ "${VIRTUAL_ENV-}" = "$perdure_env" ] && unset VIRTUAL_ENV
        ;;
    esac
    exec "$perdure_uv" "$@"
}

# root needs no program to become root, and keeps its PATH, so that `sudo pip` is the pip of everything else.
run_sudo() {
    perdure_real=$(on_image sudo)
    if [ "$(id -u)" = 0 ]; then
        perdure_kept=$*
        while :; do
            case ${1-} in
            -E | -H | -n | -S | -k | -EH | -HE | --preserve-env | --non-interactive | --set-home) shift ;;
            -u) if [ "${2-}" = root ]; then shift 2; else break; fi ;;
            --) shift && break ;;
            *) break ;;
            esac
        done
        case ${1-} in
        -* | "") [ -z "$perdure_kept" ] && exit 0 ;;
        *) exec env "$@" ;;
        esac
    fi
    if [ -n "$perdure_real" ]; then exec "$perdure_real" "$@"; fi
    say "this machine has no sudo, and $(id -un) cannot run: sudo $*"
    exit 1
}

# ---- conda: environments of Python packages, made with uv ----

refuse_conda() {
    say "conda $1: this machine's conda makes environments of Python packages, with uv, and cannot do this."
    say "Use pip for packages of Python. For others, install a conda in \`setup\`, which then takes its place, or use"
    say "an image that has one, such as image_id: docker:condaforge/miniforge3"
    exit 1
}

conda_folder() { # of a name or a path
    case $1 in
    */*) echo "$1" ;;
    *) echo "$HOME/.conda/envs/$1" ;;
    esac
}

conda_create() {
    perdure_target='' perdure_version='' perdure_packages=''
    while [ $# -gt 0 ]; do
        case $1 in
        -n | --name | -p | --prefix) perdure_target=${2-} && shift ;;
        --name=* | --prefix=*) perdure_target=${1#*=} ;;
        -c | --channel) shift ;;
        -y | --yes | -q | --quiet | --channel=* | --override-channels | --no-default-packages) ;;
        -*) refuse_conda "create $1" ;;
        python[!a-zA-Z0-9_-]*) perdure_version=${1#python} ;;
        python | pip | pip=* | setuptools | wheel) ;;
        *) perdure_packages="$perdure_packages $1" ;;
        esac
        shift
    done
    [ -z "$perdure_target" ] && say "conda create: give the environment a name with -n NAME" && exit 1
    [ -n "$perdure_packages" ] && refuse_conda "create$perdure_packages"
    perdure_version=$(echo "$perdure_version" | sed 's/^[= ]*//; s/\.\*$//')
    perdure_folder=$(conda_folder "$perdure_target")
    rm -rf "$perdure_folder" # as conda does after its question
    # It sees nothing of the machine's environment. Its Python is that of the machine unless another is named.
    make_env "$perdure_folder" "${perdure_version:-${perdure_python:-$perdure_base}}" --seed || exit 1
    say "made the environment $perdure_target with uv. To use it: conda activate $perdure_target"
}

conda_list_envs() {
    echo "# conda environments:"
    printf '%-22s %s\n' base "$perdure_env"
    for perdure_folder in "$HOME"/.conda/envs/*/; do
        [ -e "$perdure_folder/.complete" ] && printf '%-22s %s\n' "$(basename "$perdure_folder")" "${perdure_folder%/}"
    done
    exit 0
}

conda_remove() {
    while [ $# -gt 0 ]; do
        case $1 in
        -n | --name | -p | --prefix) perdure_target=${2-} && shift ;;
        --all) perdure_has_all=1 ;;
        -y | --yes | -q | --quiet) ;;
        *) refuse_conda "remove $1" ;;
        esac
        shift
    done
    if [ -n "${perdure_target-}" ] && [ -n "${perdure_has_all-}" ]; then exec rm -rf "$(conda_folder "$perdure_target")"; fi
    refuse_conda remove
}

conda_run() {
    perdure_target=
    while [ $# -gt 0 ]; do
        case $1 in
        -n | --name | -p | --prefix) perdure_target=${2-} && shift 2 ;;
        --no-capture-output | --live-stream) shift ;;
        *) break ;;
        esac
    done
    perdure_folder=$(conda_folder "${perdure_target:-base}")
    [ "${perdure_target:-base}" = base ] && make_machine_env && perdure_folder=$perdure_env
    if ! [ -x "$perdure_folder/bin/python" ]; then say "there is no conda environment $perdure_target" && exit 1; fi
    exec env PATH="$perdure_folder/bin:$PATH" VIRTUAL_ENV="$perdure_folder" CONDA_PREFIX="$perdure_folder" "$@"
}

run_conda() {
    perdure_real=$(on_image conda) && exec "$perdure_real" "$@"
    case "${1-} ${2-}" in
    "create "*) shift && conda_create "$@" ;;
    "env list" | "info --envs" | "info -e") conda_list_envs ;;
    "env remove") shift 2 && conda_remove --all "$@" ;;
    "remove "*) shift && conda_remove "$@" ;;
    "run "*) shift && conda_run "$@" ;;
    "info --base") echo "$perdure_tools" ;;
    "list "*) find_uv && exec "$perdure_uv" pip list --python "${CONDA_PREFIX:-$perdure_env}" ;;
    "init "* | "config "* | "shell.bash hook" | "clean "*) ;; # nothing needs to be done
    "--version "* | "-V "*) find_uv && echo "conda by perdure, with $("$perdure_uv" --version)" ;;
    "activate "*) say "conda activate works in bash: source $perdure_tools/etc/profile.d/conda.sh" && exit 1 ;;
    *) refuse_conda "$*" ;;
    esac
}

[ -n "$perdure_base" ] || perdure_base=$(on_image python3)
case $perdure_name in
python*) run_python "$@" ;;
pip*)
    make_machine_env || exit 127
    exec "$perdure_env/bin/python" -m pip "$@"
    ;;
uv) run_uv "$@" ;;
uvx) run_uv tool run "$@" ;;
sudo) run_sudo "$@" ;;
conda) run_conda "$@" ;;
esac
