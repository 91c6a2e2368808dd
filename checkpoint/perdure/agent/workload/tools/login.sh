# shellcheck shell=bash disable=SC2154 # the settings are in a file that this node writes
#
# Makes the shell of a script, or of a user's session, what a login shell of the machine is, with Perdure's tools on its
# PATH. It is sourced with PERDURE_TOOLS set, and `perdure_skip_rc=1` to leave out the files of the image and the user.
#
# These files may do anything: print, fail, change options and folders, and even end the shell (the caller then tries
# again without them).

# Keeps the order of the PATH in $1, which /etc/profile may have replaced. What a profile added, such as CUDA, comes before
# it, and the folders of every system after it.
perdure_merge() {
    local IFS=: folder before='' after=''
    for folder in $PATH; do
        case ":$1:$before:$after:" in
        *":$folder:"*) continue ;;
        esac
        case $folder in
        /usr/local/sbin | /usr/local/bin | /usr/sbin | /usr/bin | /sbin | /bin | /usr/games | /usr/local/games)
            after=$after:$folder
            ;;
        *) before=$before$folder: ;;
        esac
    done
    PATH=$before$1$after
}

# shellcheck source=/dev/null
source "$PERDURE_TOOLS/settings"
perdure_image_python=$(type -P python)
perdure_user_python=$perdure_image_python
if [ -z "${perdure_skip_rc-}" ]; then
    # The images of clouds put the paths of CUDA and EFA into /etc/profile.d.
    perdure_path=$PATH
    if [ -r /etc/profile ]; then
        # shellcheck disable=SC1091
        source /etc/profile >/dev/null 2>&1 </dev/null || true
        set +eu +o pipefail
    fi
    perdure_merge "$perdure_path"
    perdure_image_python=$(type -P python)
    # Most distributions' ~/.bashrc returns at once in a shell that is not interactive, and an interactive one would
    # ignore SIGTERM. So the file is told that the shell is interactive.
    if [ -r ~/.bashrc ]; then
        PS1='$ '
        # shellcheck disable=SC1090
        source <(sed 's/\$-/himBHs/g' ~/.bashrc) >/dev/null 2>&1 </dev/null || true
        set +eu +o pipefail
        unset PS1 PROMPT_COMMAND
    fi
    perdure_user_python=$(type -P python)
fi

# Which Python `python` is: one that ~/.bashrc chose, such as that of a conda of the user's; the machine's environment, if
# it exists; one with pip beside it, which an image brings; or else the machine's environment, made at first use.
if [ "$perdure_user_python" != "$perdure_image_python" ]; then
    perdure_has_own=1
elif [ -n "$perdure_own_env" ] || [ -e "$perdure_env/.complete" ]; then
    perdure_has_own=
elif [ -n "$perdure_user_python" ] && [ -x "${perdure_user_python%/*}/pip" ]; then
    perdure_has_own=1
else
    perdure_has_own=
fi
if [ -n "$perdure_has_own" ]; then
    PATH=$PATH:$PERDURE_TOOLS/bin
else
    PATH=$PERDURE_TOOLS/bin:$perdure_env/bin:$PATH
    export VIRTUAL_ENV=$perdure_env
fi
export PATH

# A real conda, of the image or the user, wherever it is on PATH: environments that it makes are its own to activate.
# An image needs bash and no other program here: a slim one may lack grep.
perdure_find_conda() {
    local IFS=$'\n' path
    for path in $(type -aP conda); do
        [ "$path" = "$PERDURE_TOOLS/bin/conda" ] || { echo "$path" && return; }
    done
}
perdure_conda=$(perdure_find_conda)
unset -f perdure_find_conda
if [ -n "$perdure_conda" ]; then
    set -a # so that its functions reach the scripts that are called
    if [ -r "${perdure_conda%/*/*}/etc/profile.d/conda.sh" ]; then
        # shellcheck source=/dev/null
        source "${perdure_conda%/*/*}/etc/profile.d/conda.sh" >/dev/null 2>&1
    else
        eval "$("$perdure_conda" shell.bash hook 2>/dev/null)"
    fi
    set +a
else
    # shellcheck source=checkpoint/perdure/agent/workload/tools/conda.sh
    source "$PERDURE_TOOLS/etc/profile.d/conda.sh"
    if [ -n "${SKYPILOT_SETUP_NODE_RANK-}" ]; then
        perdure_shell=$$ # not exported: only the shell of `setup` itself has it
        rm -f "$PERDURE_TOOLS/active"
    elif [ -s "$PERDURE_TOOLS/active" ]; then
        conda activate "$(cat "$PERDURE_TOOLS/active")"
    fi
fi
unset -f perdure_merge
unset perdure_base perdure_env perdure_python perdure_own_env perdure_parent_site perdure_has_pip perdure_path perdure_image_python perdure_user_python
unset perdure_has_own perdure_conda perdure_skip_rc
