# Use with: source @ROOT@/bin/activate.csh    (csh, tcsh). Undo with: deactivate

# In csh an `if` expands the variables of its command even when it does not run it; `&&` does not.
alias _sconce_path 'test $?_SCONCE_OLD_PATH != 0 && setenv PATH "$_SCONCE_OLD_PATH" && unset _SCONCE_OLD_PATH'
alias _sconce_prompt 'test $?_SCONCE_OLD_PROMPT != 0 && set prompt="$_SCONCE_OLD_PROMPT" && unset _SCONCE_OLD_PROMPT'
alias deactivate '_sconce_path; _sconce_prompt; unsetenv VIRTUAL_ENV; unsetenv VIRTUAL_ENV_PROMPT; rehash; test "\!:*" != keep && unalias deactivate'

# Activating twice must not remember the first activation as the state to go back to.
deactivate keep

setenv VIRTUAL_ENV '@ROOT@'
setenv VIRTUAL_ENV_PROMPT '@PROMPT@'

set _SCONCE_OLD_PATH="$PATH"
setenv PATH "${VIRTUAL_ENV}/bin:${PATH}"

if (! $?VIRTUAL_ENV_DISABLE_PROMPT) then
    if ($?prompt) then
        set _SCONCE_OLD_PROMPT="$prompt"
        set prompt="(${VIRTUAL_ENV_PROMPT}) $prompt"
    endif
endif

rehash
