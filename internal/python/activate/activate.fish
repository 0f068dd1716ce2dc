# Use with: source @ROOT@/bin/activate.fish    Undo with: deactivate

function deactivate -d 'leave the Python environment'
    if set -q _SCONCE_OLD_PATH
        set -gx PATH $_SCONCE_OLD_PATH
        set -e _SCONCE_OLD_PATH
    end
    if set -q _SCONCE_OLD_PYTHONHOME
        set -gx PYTHONHOME $_SCONCE_OLD_PYTHONHOME
        set -e _SCONCE_OLD_PYTHONHOME
    end
    if functions -q _sconce_old_prompt
        functions -e fish_prompt
        functions -c _sconce_old_prompt fish_prompt
        functions -e _sconce_old_prompt _sconce_status
    end
    set -e VIRTUAL_ENV
    set -e VIRTUAL_ENV_PROMPT
    if test "$argv[1]" != keep
        functions -e deactivate
    end
end

# Activating twice must not remember the first activation as the state to go back to.
deactivate keep

set -gx VIRTUAL_ENV '@ROOT@'
set -gx VIRTUAL_ENV_PROMPT '@PROMPT@'

set -g _SCONCE_OLD_PATH $PATH
set -gx PATH $VIRTUAL_ENV/bin $PATH

if set -q PYTHONHOME
    set -g _SCONCE_OLD_PYTHONHOME $PYTHONHOME
    set -e PYTHONHOME
end

if test -z "$VIRTUAL_ENV_DISABLE_PROMPT"; and functions -q fish_prompt
    functions -c fish_prompt _sconce_old_prompt
    function _sconce_status
        return $argv[1]
    end
    function fish_prompt
        set -l last $status
        printf '(%s) ' $VIRTUAL_ENV_PROMPT
        _sconce_status $last # the status of the last command is the old prompt's to show
        _sconce_old_prompt
    end
end
