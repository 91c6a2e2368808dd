# shellcheck shell=bash
# The shell function `conda` of a node without a conda: `activate` and `deactivate` change the shell, and the program
# in bin/conda does the rest. A real conda that comes later, such as one that `setup` installs, takes its place.

conda() {
    local program
    program=$(type -P conda)
    if [ -n "$program" ] && [ "$program" != "$PERDURE_TOOLS/bin/conda" ]; then
        unset -f conda
        set -a
        # shellcheck source=/dev/null
        . "${program%/*/*}/etc/profile.d/conda.sh"
        set +a
        conda "$@"
        return
    fi
    case ${1-} in
    activate) perdure_conda_activate "${2-base}" ;;
    deactivate) perdure_conda_deactivate ;;
    *) "$PERDURE_TOOLS/bin/conda" "$@" ;;
    esac
}

perdure_conda_activate() {
    local folder
    if [ "$1" = base ]; then
        perdure_conda_deactivate
        return
    fi
    case $1 in
    */*) folder=$1 ;;
    *) folder=$HOME/.conda/envs/$1 ;;
    esac
    if ! [ -x "$folder/bin/python" ]; then
        echo "EnvironmentNameNotFound: there is no conda environment $1; \`conda env list\` lists them" >&2
        return 1
    fi
    perdure_conda_deactivate
    export PERDURE_OUTER_ENV=${VIRTUAL_ENV-}
    export CONDA_PREFIX=$folder CONDA_DEFAULT_ENV=$1 CONDA_SHLVL=1 VIRTUAL_ENV=$folder
    PATH=$folder/bin:$PATH
    hash -r
    perdure_conda_store "$1"
}

perdure_conda_deactivate() {
    [ -n "${CONDA_PREFIX-}" ] || return 0
    PATH=:$PATH:
    PATH=${PATH/":$CONDA_PREFIX/bin:"/:}
    PATH=${PATH#:}
    PATH=${PATH%:}
    VIRTUAL_ENV=${PERDURE_OUTER_ENV-}
    [ -n "$VIRTUAL_ENV" ] || unset VIRTUAL_ENV
    unset CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_SHLVL PERDURE_OUTER_ENV
    hash -r
    perdure_conda_store ""
}

# The environment in which `setup` ends is the one in which `run` begins.
perdure_conda_store() {
    if [ "${perdure_shell-}" = "$$" ] && [ "$BASHPID" = "$$" ]; then
        printf '%s' "$1" >"$PERDURE_TOOLS/active"
    fi
}

export -f conda perdure_conda_activate perdure_conda_deactivate perdure_conda_store
