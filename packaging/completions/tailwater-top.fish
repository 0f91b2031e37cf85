# Made by `cargo xtask docs` from the records in the code. Changes belong there.

complete -c tailwater-top -f
complete -c tailwater-top -s 'n' -l interval -x -d 'time between two reads, 0.1 to 3600 (default: 1)'
complete -c tailwater-top -s '1' -l once -d 'print everything once, as plain text, and exit'
complete -c tailwater-top -l control -x -d 'read the control API at this address instead of a URL'
complete -c tailwater-top -l control-token -r -F -d 'file with the token of the control API'
complete -c tailwater-top -l ca -r -F -d 'https: authorities that are trusted, in PEM (default: those of the system)'
complete -c tailwater-top -l insecure -d 'https: do not verify the certificate of the server'
complete -c tailwater-top -s 't' -l table -x -a 'loops disks caches upstreams requests connections' -d 'table that is selected first; with --once: the only one'
complete -c tailwater-top -s 'f' -l filter -x -d 'only rows with this text'
complete -c tailwater-top -s 'H' -l header -x -d 'field of the requests, as "Authorization: Basic ..."; may stand several times'
complete -c tailwater-top -l no-color -d 'no colours (also: NO_COLOR in the environment)'
complete -c tailwater-top -s 'v' -l version -d 'show version and exit'
complete -c tailwater-top -s '?' -s 'h' -l help -d 'this help'
