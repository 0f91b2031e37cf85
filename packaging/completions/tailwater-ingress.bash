# Made by `cargo xtask docs` from the records in the code. Changes belong there.

_tailwater_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}"); }

# Names may have blanks in them: what is proposed is quoted as a file name.
_tailwater_names() {
    compopt -o filenames 2> /dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "${COMP_WORDS[COMP_CWORD]}")
}

_tailwater_ingress() {
    local before=${COMP_WORDS[COMP_CWORD - 1]}
    case $before in
        --controller-class) COMPREPLY=(); return ;;
        --gateway-controller) COMPREPLY=(); return ;;
        --ingress-class) COMPREPLY=(); return ;;
        --watch-namespace) COMPREPLY=(); return ;;
        --configmap) COMPREPLY=(); return ;;
        --tcp-services-configmap) COMPREPLY=(); return ;;
        --udp-services-configmap) COMPREPLY=(); return ;;
        --default-backend-service) COMPREPLY=(); return ;;
        --default-ssl-certificate) COMPREPLY=(); return ;;
        --publish-service) COMPREPLY=(); return ;;
        --publish-status-address) COMPREPLY=(); return ;;
        --election-id) COMPREPLY=(); return ;;
        --http-port) COMPREPLY=(); return ;;
        --https-port) COMPREPLY=(); return ;;
        --status-port) COMPREPLY=(); return ;;
        --fleet-engine) COMPREPLY=(); return ;;
        --fleet-credentials) _tailwater_names -f; return ;;
        --fleet-node) COMPREPLY=(); return ;;
        --modsecurity-rules) _tailwater_names -f; return ;;
        --owasp-core-rules) _tailwater_names -f; return ;;
        --resolver) COMPREPLY=(); return ;;
        --apiserver) COMPREPLY=(); return ;;
        --token-file) _tailwater_names -f; return ;;
        --ca) _tailwater_names -f; return ;;
        --tailwater) _tailwater_names -f; return ;;
        --control) _tailwater_names -f; return ;;
        --dir) _tailwater_names -d; return ;;
    esac
    _tailwater_words '--controller-class --gateway-controller --ingress-class --watch-ingress-without-class --watch-namespace --configmap --tcp-services-configmap --udp-services-configmap --default-backend-service --default-ssl-certificate --publish-service --publish-status-address --election-id --allow-snippets --allow-cross-namespace --http-port --https-port --status-port --fleet-engine --fleet-credentials --fleet-node --modsecurity-rules --owasp-core-rules --resolver --apiserver --token-file --ca --tailwater --control --dir -v --version -h -? --help'
}

complete -F _tailwater_ingress tailwater-ingress
