# Made by `cargo xtask docs` from the records in the code. Changes belong there.

_tailwater_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}"); }

# Names may have blanks in them: what is proposed is quoted as a file name.
_tailwater_names() {
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "${COMP_WORDS[COMP_CWORD]}")
}

_tailwater_top() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    case $before in
        -n | --interval) COMPREPLY=(); return ;;
        --control) COMPREPLY=(); return ;;
        --control-token) _tailwater_names -f; return ;;
        --ca) _tailwater_names -f; return ;;
        -t | --table) _tailwater_words 'loops disks caches upstreams requests connections'; return ;;
        -f | --filter) COMPREPLY=(); return ;;
        -H | --header) COMPREPLY=(); return ;;
    esac
    if [[ $word == -* ]]; then _tailwater_words '-n --interval -1 --once --control --control-token --ca --insecure -t --table -f --filter -H --header --no-color -v --version -? -h --help'; else _tailwater_words 'http:// unix:'; fi
}

complete -F _tailwater_top tailwater-top
