# Use with: . @ROOT@/bin/activate    (sh, bash, zsh). Undo with: deactivate

deactivate() {
    if [ -n "${_SCONCE_OLD_PATH+set}" ]; then
        PATH=$_SCONCE_OLD_PATH
        export PATH
        unset _SCONCE_OLD_PATH
    fi
    if [ -n "${_SCONCE_OLD_PYTHONHOME+set}" ]; then
        PYTHONHOME=$_SCONCE_OLD_PYTHONHOME
        export PYTHONHOME
        unset _SCONCE_OLD_PYTHONHOME
    fi
    if [ -n "${_SCONCE_OLD_PS1+set}" ]; then
        PS1=$_SCONCE_OLD_PS1
        unset _SCONCE_OLD_PS1
    fi
    unset VIRTUAL_ENV VIRTUAL_ENV_PROMPT
    hash -r 2>/dev/null || true
    if [ "${1:-}" != keep ]; then
        unset -f deactivate
    fi
}

# Activating twice must not remember the first activation as the state to go back to.
deactivate keep

VIRTUAL_ENV='@ROOT@'
VIRTUAL_ENV_PROMPT='@PROMPT@'
export VIRTUAL_ENV VIRTUAL_ENV_PROMPT

_SCONCE_OLD_PATH=$PATH
PATH=$VIRTUAL_ENV/bin:$PATH
export PATH

if [ -n "${PYTHONHOME+set}" ]; then
    _SCONCE_OLD_PYTHONHOME=$PYTHONHOME
    unset PYTHONHOME
fi

if [ -z "${VIRTUAL_ENV_DISABLE_PROMPT:-}" ] && [ -n "${PS1+set}" ]; then
    _SCONCE_OLD_PS1=$PS1
    PS1="($VIRTUAL_ENV_PROMPT) $PS1"
fi

hash -r 2>/dev/null || true
