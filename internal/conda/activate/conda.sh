# "conda activate" and "conda deactivate" of the environments that lie below @ROOT@, for sh, bash and zsh, without Python. Use with:
# . @ROOT@/etc/profile.d/conda.sh

# _sconce_conda_prefix ENV: prints the prefix of an environment by its name or path.
_sconce_conda_prefix() {
    case ${1:-base} in
    base) set -- '@ROOT@' ;;
    */*) set -- "${1%/}" ;;
    *) set -- "@ROOT@/envs/$1" ;;
    esac
    if [ ! -d "$1/conda-meta" ]; then
        echo "conda: there is no environment in $1" >&2
        return 1
    fi
    printf '%s\n' "$1"
}

# _sconce_conda_name PREFIX: prints the name of an environment, or its prefix.
_sconce_conda_name() {
    case $1 in
    '@ROOT@') echo base ;;
    '@ROOT@/envs/'*/*) printf '%s\n' "$1" ;;
    '@ROOT@/envs/'*) printf '%s\n' "${1#'@ROOT@/envs/'}" ;;
    *) printf '%s\n' "$1" ;;
    esac
}

# _sconce_conda_source DIR: sources the scripts of a directory, in the order of their bytes.
_sconce_conda_source() {
    [ -d "$1" ] || return 0
    set -- "$(LC_ALL=C; printf '%s\n' "$1"/*.sh 2>/dev/null)"
    while [ -n "$1" ]; do
        _sconce_conda_file=${1%%
*}
        case $1 in
        *'
'*) set -- "${1#*
}" ;;
        *) set -- '' ;;
        esac
        if [ -r "$_sconce_conda_file" ]; then
            . "$_sconce_conda_file"
        fi
    done
    unset _sconce_conda_file
}

# _sconce_conda_enter PREFIX: makes the environment of this shell that of a prefix.
_sconce_conda_enter() {
    CONDA_PREFIX=$1
    CONDA_DEFAULT_ENV=$(_sconce_conda_name "$1")
    CONDA_PROMPT_MODIFIER="($CONDA_DEFAULT_ENV) "
    PATH=$CONDA_PREFIX/bin:$PATH
    export PATH CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_PROMPT_MODIFIER
    if [ -n "${PS1:-}" ]; then
        PS1=$CONDA_PROMPT_MODIFIER$PS1
    fi
    if [ -r "$CONDA_PREFIX/etc/conda/variables.sh" ]; then
        . "$CONDA_PREFIX/etc/conda/variables.sh"
    fi
    _sconce_conda_source "$CONDA_PREFIX/etc/conda/activate.d"
    hash -r 2>/dev/null || true
}

# _sconce_conda_leave: undoes it.
_sconce_conda_leave() {
    _sconce_conda_source "$CONDA_PREFIX/etc/conda/deactivate.d"
    if [ -r "$CONDA_PREFIX/etc/conda/variables.sh" ]; then
        while IFS= read -r _sconce_conda_line; do
            case $_sconce_conda_line in
            'export '*=*)
                _sconce_conda_line=${_sconce_conda_line#export }
                unset "${_sconce_conda_line%%=*}"
                ;;
            esac
        done <"$CONDA_PREFIX/etc/conda/variables.sh"
        unset _sconce_conda_line
    fi
    _sconce_conda_path=:$PATH:
    case $_sconce_conda_path in
    *":$CONDA_PREFIX/bin:"*)
        PATH=${_sconce_conda_path%%":$CONDA_PREFIX/bin:"*}:${_sconce_conda_path#*":$CONDA_PREFIX/bin:"}
        PATH=${PATH#:}
        PATH=${PATH%:}
        export PATH
        ;;
    esac
    if [ -n "${PS1:-}" ]; then
        PS1=${PS1#"${CONDA_PROMPT_MODIFIER:-}"}
    fi
    unset _sconce_conda_path CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_PROMPT_MODIFIER
}

_sconce_conda_activate() {
    _sconce_conda_to=$(_sconce_conda_prefix "${1:-}") || return 1
    if [ "$_sconce_conda_to" = "${CONDA_PREFIX:-}" ]; then
        unset _sconce_conda_to
        return 0
    fi
    if [ -n "${CONDA_PREFIX:-}" ]; then
        eval "export CONDA_PREFIX_${CONDA_SHLVL:-1}=\$CONDA_PREFIX"
        _sconce_conda_leave
    fi
    CONDA_SHLVL=$((${CONDA_SHLVL:-0} + 1))
    export CONDA_SHLVL
    _sconce_conda_enter "$_sconce_conda_to"
    unset _sconce_conda_to
}

_sconce_conda_deactivate() {
    [ -n "${CONDA_PREFIX:-}" ] || return 0
    _sconce_conda_leave
    CONDA_SHLVL=$((${CONDA_SHLVL:-1} - 1))
    export CONDA_SHLVL
    eval "_sconce_conda_to=\${CONDA_PREFIX_$CONDA_SHLVL:-}"
    if [ -n "$_sconce_conda_to" ]; then
        unset "CONDA_PREFIX_$CONDA_SHLVL"
        _sconce_conda_enter "$_sconce_conda_to"
    fi
    unset _sconce_conda_to
}

conda() {
    case ${1:-} in
    activate)
        shift
        _sconce_conda_activate "$@"
        ;;
    deactivate) _sconce_conda_deactivate ;;
    *)
        if [ -x '@ROOT@/bin/conda' ]; then
            '@ROOT@/bin/conda' "$@"
        else
            echo 'conda: this image has the environment without the program conda; "conda activate" and "conda deactivate" work.' >&2
            echo 'conda: "client = true" under [conda] in a recipe adds it, and so does --conda-client of cotainr.' >&2
            [ ! -r '@ROOT@-lock.yml' ] || echo 'conda: @ROOT@-lock.yml lists its packages' >&2
            return 127
        fi
        ;;
    esac
}
