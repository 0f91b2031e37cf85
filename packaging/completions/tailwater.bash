# Made by `cargo xtask docs` from the records in the code. Changes belong there.

_tailwater_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}"); }

# Names may have blanks in them: what is proposed is quoted as a file name.
_tailwater_names() {
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "${COMP_WORDS[COMP_CWORD]}")
}

_tailwater() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == serve ]]; then
        case $before in
            -l | --listen) COMPREPLY=(); return ;;
            --php) COMPREPLY=(); return ;;
            --auth) COMPREPLY=(); return ;;
            --tls) COMPREPLY=(); return ;;
            --acme-directory) COMPREPLY=(); return ;;
            --acme-ca) _tailwater_names -f; return ;;
        esac
        if [[ $word == -* ]]; then _tailwater_words '-l --listen --spa --php --compress --auth --tls --accept-terms --acme-directory --acme-ca -? -h --help'; else _tailwater_names -d; fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == proxy ]]; then
        case $before in
            -l | --listen) COMPREPLY=(); return ;;
            --timeout) COMPREPLY=(); return ;;
            --cache) _tailwater_names -d; return ;;
            --cache-size) COMPREPLY=(); return ;;
            --tls) COMPREPLY=(); return ;;
            --acme-directory) COMPREPLY=(); return ;;
            --acme-ca) _tailwater_names -f; return ;;
        esac
        if [[ $word == -* ]]; then _tailwater_words '-l --listen --change-host --insecure --timeout --cache --cache-size --tls --accept-terms --acme-directory --acme-ca -? -h --help'; else _tailwater_words 'http:// https:// unix:'; fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == purge ]]; then
        case $before in
            --cache) COMPREPLY=(); return ;;
            --tag) COMPREPLY=(); return ;;
            -c) _tailwater_names -f; return ;;
            -p) _tailwater_names -d; return ;;
            -g) COMPREPLY=(); return ;;
        esac
        if [[ $word == -* ]]; then _tailwater_words '--cache --tag --soft -c -p -g -? -h --help'; else COMPREPLY=(); fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == fleet ]]; then
        case $before in
            -c) _tailwater_names -f; return ;;
            -p) _tailwater_names -d; return ;;
            -g) COMPREPLY=(); return ;;
            --key) _tailwater_names -f; return ;;
            --trust) _tailwater_names -f; return ;;
            --directory) _tailwater_names -d; return ;;
            --metrics) COMPREPLY=(); return ;;
            --author) COMPREPLY=(); return ;;
            --waves) COMPREPLY=(); return ;;
            --settle) COMPREPLY=(); return ;;
            --max-errors) COMPREPLY=(); return ;;
        esac
        if [[ $word == -* ]]; then _tailwater_words '-c -p -g --key --trust --directory --metrics --author --waves --settle --max-errors -? -h --help'; else _tailwater_words status key push diff rollout rollback follow; fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == trust ]]; then
        case $before in
            --store) _tailwater_names -d; return ;;
        esac
        if [[ $word == -* ]]; then _tailwater_words '--remove --store -? -h --help'; else COMPREPLY=(); fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == hash-password ]]; then
        case $before in
        esac
        if [[ $word == -* ]]; then _tailwater_words '-? -h --help'; else COMPREPLY=(); fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == top ]]; then
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
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == js ]]; then
        case $before in
        esac
        if [[ $word == -* ]]; then _tailwater_words '-? -h --help'; else _tailwater_names -f; fi
        return
    fi
    if ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[1]} == cache ]]; then
        case ${COMP_WORDS[2]} in
        stat)
            case $before in
            esac
            if [[ $word == -* ]]; then _tailwater_words '--quick --json -? -h --help'; else _tailwater_names -d; fi ;;
        check)
            case $before in
                --jobs) COMPREPLY=(); return ;;
                --rate) COMPREPLY=(); return ;;
            esac
            if [[ $word == -* ]]; then _tailwater_words '--jobs --rate --remove -? -h --help'; else _tailwater_names -d; fi ;;
        export)
            case $before in
                --key-prefix) COMPREPLY=(); return ;;
                --to) _tailwater_names -f; return ;;
                --rate) COMPREPLY=(); return ;;
            esac
            if [[ $word == -* ]]; then _tailwater_words '--key-prefix --to --list --json --rate -? -h --help'; else _tailwater_names -d; fi ;;
        format)
            case $before in
                --segment) COMPREPLY=(); return ;;
            esac
            if [[ $word == -* ]]; then _tailwater_words '--segment --again -? -h --help'; else _tailwater_names -f; fi ;;
        *) _tailwater_words 'stat check export format' ;;
        esac
        return
    fi
    case $before in
        --explain) COMPREPLY=(); return ;;
        -s) _tailwater_words 'stop quit reopen reload'; return ;;
        -p) _tailwater_names -d; return ;;
        -e) _tailwater_names -f; return ;;
        -c) _tailwater_names -f; return ;;
        -g) COMPREPLY=(); return ;;
        -l) COMPREPLY=(); return ;;
        --control-token) _tailwater_names -f; return ;;
    esac
    local commands=
    ((COMP_CWORD > 1)) || commands='serve proxy purge cache fleet trust hash-password top js'
    _tailwater_words "-? -h --help -v --version -V -t -T --explain -q -s -p -e -c -g -l --control-token --enable-fault-injection $commands"
}

complete -F _tailwater tailwater
