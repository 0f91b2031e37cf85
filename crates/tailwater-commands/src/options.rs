//! The records of the command line: `-h`, the manual page and the completions of shells are made of them.
//!
//! [`crate::cli`] reads the words, and a test there holds that it knows these options and no others. Those of `tailwater top` are in its own crate.

use tw_base::command_line::{Kind, Opt, flag, with};

/// nginx's options and ours.
pub const MAIN: &[Opt] = &[
    flag(&["-?", "-h", "--help"], "this help", ""),
    flag(&["-v", "--version"], "show version and exit", ""),
    flag(
        &["-V"],
        "show version and built-in modules, then exit",
        "The last line has the form of the options of nginx's configure script, for programs that parse it.",
    ),
    flag(
        &["-t"],
        "test configuration and exit; changes nothing and needs no privileges",
        "Status 0 if a server would start with it. Every error is reported, with suggestions.",
    ),
    flag(&["-T"], "test configuration, dump it and exit", "All files are written to standard output."),
    with(
        &["--explain"],
        ("URL", Kind::Text),
        "test configuration, show which server, location and handlers would answer a request (or a session: tcp://host:port, udp://host:port or tls://name:port), and exit",
        "A path alone, such as /index.html, is for the only server, or the default server of the first address.",
    ),
    flag(&["-q"], "suppress non-error messages during configuration testing", ""),
    with(
        &["-s"],
        ("signal", Kind::Words(&["stop", "quit", "reopen", "reload"])),
        "send a signal to the running server: stop, quit, reopen, reload",
        "The server is found by its pid file. A reload waits for the server and prints its messages about the new \
         configuration; the status is 1 if the configuration is refused.",
    ),
    with(&["-p"], ("prefix", Kind::Directory), "directory of relative names (default: {prefix})", ""),
    with(
        &["-e"],
        ("filename", Kind::File),
        "error log of a configuration without one (default: logs/error.log)",
        "stderr is standard error.",
    ),
    with(&["-c"], ("filename", Kind::File), "configuration file (default: {file})", ""),
    with(
        &["-g"],
        ("directives", Kind::Text),
        "directives before those of the configuration file",
        "For example: -g \"daemon off; worker_processes 2;\"",
    ),
    with(
        &["-l"],
        ("address", Kind::Text),
        "serve the control API on unix:/path, a port of 127.0.0.1, or address:port",
        "Reloads with their result, the configuration in use, processes, purges and messages as JSON over HTTP. The file of a Unix socket \
         has the mode 0600; an address needs --control-token.",
    ),
    with(
        &["--control-token"],
        ("file", Kind::File),
        "file with the token that clients of the control API must send (Authorization: Bearer)",
        "The token is the first line of the file, which only its owner may read.",
    ),
    flag(
        &["--enable-fault-injection"],
        "allow debug_disk_fault in the configuration, which makes disk operations slow or fail",
        "Without this option the directive is an error. For rehearsals, not for production.",
    ),
];

// Options of all commands with certificates.
const TLS: Opt = with(
    &["--tls"],
    ("name", Kind::Text),
    "listen with TLS as this host, by default on port 443 of all addresses; may be repeated",
    "The certificate is requested, stored in the user's state directory ($XDG_STATE_HOME/tailwater/acme) and renewed in \
     time. The authority connects to port 443 of the name to verify it. For names and addresses of this machine and of \
     private networks (localhost, app.test, 192.168.0.2), the local authority of the user issues the certificate; tailwater trust \
     makes the system trust it. The default is then 127.0.0.1:8443, or the next free port.",
);
const ACCEPT_TERMS: Opt =
    flag(&["--accept-terms"], "accept the terms of service of the authority that issues the certificate", "");
const ACME_DIRECTORY: Opt = with(
    &["--acme-directory"],
    ("url", Kind::Text),
    "request certificates from this authority (default: Let's Encrypt)",
    "",
);
const ACME_CA: Opt = with(
    &["--acme-ca"],
    ("file", Kind::File),
    "trust these certificates (PEM) of the authority, for a private one",
    "",
);

/// Purpose of `serve`, after its usage.
pub const SERVE_ABOUT: &str = "Serves a directory (default: the current one) until Ctrl-C. Listings are on; files \
     and directories whose names begin with a dot are neither listed nor served.";

/// The options of `tailwater serve [directory]`.
pub const SERVE: &[Opt] = &[
    with(
        &["-l", "--listen"],
        ("address", Kind::Text),
        "port, address or address:port (default: 127.0.0.1:8080, or the next free port)",
        "A port alone is on the loopback interface; 0.0.0.0 opens it to other machines.",
    ),
    flag(&["--spa"], "serve index.html for paths that do not exist", ""),
    with(
        &["--php"],
        ("address", Kind::Text),
        "run .php files with the PHP at unix:path or host:port, and index.php for paths that do not exist",
        "Listings are off then. Only paths of existing files are passed to PHP.",
    ),
    flag(&["--compress"], "compress text with a coding that the client accepts (gzip, br, zstd)", ""),
    with(
        &["--auth"],
        ("user:password", Kind::Text),
        "require a name and a password; - reads them from standard input, because other users can see command lines",
        "",
    ),
    TLS,
    ACCEPT_TERMS,
    ACME_DIRECTORY,
    ACME_CA,
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `proxy`, after its usage.
pub const PROXY_ABOUT: &str = "Passes requests on to the servers at these URLs (http://host:port, \
     https://host:port, host:port, a port of this machine, or unix:path) until Ctrl-C. Several servers take turns, and one that fails is left out for a second. \
     They get the Host of the client, X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and X-Real-IP. WebSockets \
     work. Errors of servers are written to standard error.";

/// The options of `tailwater proxy URL...`.
pub const PROXY: &[Opt] = &[
    with(
        &["-l", "--listen"],
        ("address", Kind::Text),
        "port, address or address:port (default: 127.0.0.1:8080, or the next free port)",
        "A port alone is on the loopback interface; 0.0.0.0 opens it to other machines.",
    ),
    flag(
        &["--change-host"],
        "send the host of the URL as Host, for servers that require it",
        "The Host of the client is still in X-Forwarded-Host. Redirections to the URL are changed to lead here. This is the default for \
         https servers, whose certificates are for that host.",
    ),
    flag(
        &["--insecure"],
        "accept any certificate of https servers",
        "Without it, the certificate must be for the host of the URL, and from an authority that the system trusts or from the local one.",
    ),
    with(
        &["--timeout"],
        ("time", Kind::Text),
        "longest time without data from a server (default: 60s; tunnels, such as WebSockets: one hour)",
        "A plain number means seconds; other units are 500ms, 5m and 1h.",
    ),
    with(
        &["--cache"],
        ("directory", Kind::Directory),
        "cache responses in this directory for as long as they are valid; it is created if it is missing",
        "Concurrent requests for the same response become one. While a server fails, or while the cache updates a response, the expired \
         response is used; X-Cache-Status shows what happened. Requests with Authorization are not answered from the \
         cache.",
    ),
    with(&["--cache-size"], ("size", Kind::Text), "largest size of the cache (default: 10g)", ""),
    TLS,
    ACCEPT_TERMS,
    ACME_DIRECTORY,
    ACME_CA,
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `purge`, after its usage.
pub const PURGE_ABOUT: &str = "Removes the responses with this key, with all variants, from a cache of the running server; a * \
     at the end stands for all keys that begin with the text in front of it. They are not used any more when the command ends, and \
     a restart does not bring them back. The server is found by its pid file, as with -s; only root and the user of the server \
     may purge. The key is the value of proxy_cache_key for a request; tailwater --explain URL shows it.";

/// The options of `tailwater purge KEY`.
pub const PURGE: &[Opt] = &[
    with(&["--cache"], ("name", Kind::Text), "the cache, by the name of its keys_zone", ""),
    with(
        &["--tag"],
        ("tag", Kind::Text),
        "instead of a key: all responses with this tag (proxy_cache_tag)",
        "",
    ),
    flag(
        &["--soft"],
        "make the responses stale: they are used until the upstream server has responded, or if it fails",
        "As far as proxy_cache_use_stale allows that.",
    ),
    with(&["-c"], ("filename", Kind::File), "configuration file of the server (default: {file})", ""),
    with(&["-p"], ("prefix", Kind::Directory), "directory of relative names (default: {prefix})", ""),
    with(&["-g"], ("directives", Kind::Text), "directives before those of the configuration file", ""),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `cache`, after its usage.
pub const CACHE_ABOUT: &str = "Reads directories of caches (proxy_cache_path and its members), with store=files and store=log, whether the server runs or \
     not. Nothing is changed without --remove. stat shows number, size and age of the responses, the used part of the segments, the age of \
     the snapshot, and the purges. check compares every checksum and lists damaged responses with path, offset and key. export writes \
     an archive or a list of responses; damaged and purged ones are left out. format prepares a block device, or a file of the right \
     size, for the segments of a cache with store=log device=DEVICE; the device has to be empty: a file system or a partition table on it is \
     never overwritten.";

const CACHE_JSON: Opt = flag(&["--json"], "JSON: an object for each directory, or for each response", "");
const CACHE_RATE: Opt = with(
    &["--rate"],
    ("size", Kind::Text),
    "read at most this many bytes of bodies in a second, such as 50m",
    "The limit is for all threads together.",
);
const HELP: Opt = flag(&["-?", "-h", "--help"], "this help", "");

/// The options of `tailwater cache stat DIRECTORY...`.
pub const CACHE_STAT: &[Opt] = &[
    flag(
        &["--quick"],
        "do not read the heads of responses in segments",
        "Their ages, and which of them were removed, are not shown then.",
    ),
    CACHE_JSON,
    HELP,
];

/// The options of `tailwater cache check DIRECTORY...`.
pub const CACHE_CHECK: &[Opt] = &[
    with(&["--jobs"], ("number", Kind::Text), "threads that read (default: 2)", "At most 64."),
    CACHE_RATE,
    flag(
        &["--remove"],
        "remove damaged responses, so that they are fetched again",
        "A running server treats them as misses.",
    ),
    HELP,
];

/// The options of `tailwater cache export DIRECTORY...`.
pub const CACHE_EXPORT: &[Opt] = &[
    with(
        &["--key-prefix"],
        ("text", Kind::Text),
        "only responses whose keys begin with this text",
        "The key is the value of proxy_cache_key.",
    ),
    with(
        &["--to"],
        ("file", Kind::File),
        "write a tar archive; - is standard output",
        "Each response is two files with its key as their name: .head with status and fields, .body with the content.",
    ),
    flag(&["--list"], "write a line for each response: status, bytes, age, time until it is stale, key", ""),
    CACHE_JSON,
    CACHE_RATE,
    HELP,
];

/// The options of `tailwater cache format DEVICE`.
pub const CACHE_FORMAT: &[Opt] = &[
    with(
        &["--segment"],
        ("size", Kind::Text),
        "size of segments (4m to 1g; default: by the size of the device)",
        "",
    ),
    flag(&["--again"], "format a device that has segments of a cache, whose responses are lost", ""),
    HELP,
];

/// Purpose of `fleet`, after its usage.
pub const FLEET_ABOUT: &str = "status shows the fleets of the running server: the connection to the engine, and for each node the sequence number of its latest \
     purge, the number of missing purges, the number of purges that wait on its disk, its version and its configuration. The server is found by \
     its pid file, as with -s; only root and the user of the server may use it. key generates the key that signs configurations. push stores the \
     configuration file and its includes as a version, diff compares them with a version. rollout makes the nodes use a version, wave by wave, \
     and rolls it back if a node refuses it or is not healthy; rollback makes all nodes return to their configuration before. \
     follow runs on a node, beside the server: it tests a version, switches to it, and reloads the server.";

/// The options of `tailwater fleet`.
pub const FLEET: &[Opt] = &[
    with(&["-c"], ("filename", Kind::File), "configuration file of the server (default: {file})", ""),
    with(&["-p"], ("prefix", Kind::Directory), "directory of relative names (default: {prefix})", ""),
    with(&["-g"], ("directives", Kind::Text), "directives before those of the configuration file", ""),
    with(
        &["--key"],
        ("file", Kind::File),
        "private key that signs versions and orders",
        "The public key is in the file beside it, with .pub.",
    ),
    with(
        &["--trust"],
        ("file", Kind::File),
        "follow: public key that must have signed the orders for the node",
        "",
    ),
    with(
        &["--directory"],
        ("path", Kind::Directory),
        "follow: directory of the versions, with the link current",
        "",
    ),
    with(
        &["--metrics"],
        ("URL", Kind::Text),
        "follow: URL of the metrics of the node, such as http://127.0.0.1:8080/metrics",
        "",
    ),
    with(&["--author"], ("name", Kind::Text), "push: name of the author (default: the user)", ""),
    with(
        &["--waves"],
        ("list", Kind::Text),
        "rollout: nodes after each wave (default: 1,25%)",
        "The last wave is always all nodes.",
    ),
    with(
        &["--settle"],
        ("seconds", Kind::Text),
        "rollout: time for which a wave has to be healthy (default: 30)",
        "",
    ),
    with(
        &["--max-errors"],
        ("percent", Kind::Text),
        "rollout: highest share of 5xx responses of a healthy node (default: 5)",
        "",
    ),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `trust`, behind its usage.
pub const TRUST_ABOUT: &str = "Makes the system trust the local authority of this user, which issues the certificates of \
     --tls only for names of this machine and of private networks. The authority is created if it does not exist, and stored in \
     the user's data directory ($XDG_DATA_HOME/tailwater/authority). If this user may not change the store of the system, the \
     command for an administrator is printed.";

/// The options of `tailwater trust`.
pub const TRUST: &[Opt] = &[
    flag(&["--remove"], "remove the authority from the trusted ones", ""),
    with(
        &["--store"],
        ("directory", Kind::Directory),
        "write its certificate into this directory instead of the store of the system",
        "No command that updates the store is run then.",
    ),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `waf test`, after its usage.
pub const WAF_ABOUT: &str = "Checks requests with the rules of the web application firewall that a configuration has for them, without a \
     server. The file has one request as it is sent, with its head and its body, or lines of an access log in the combined format; - is standard \
     input. The verdict, the anomaly score and the rules that match are printed for each request.";

/// The options of `tailwater waf test`.
pub const WAF: &[Opt] = &[
    with(&["-c"], ("file", Kind::File), "configuration file (default: {file})", ""),
    with(&["-p"], ("prefix", Kind::Directory), "prefix of relative names (default: {prefix})", ""),
    with(&["-g"], ("directives", Kind::Text), "directives before those of the configuration file", ""),
    with(
        &["--host"],
        ("host", Kind::Text),
        "host, perhaps with its port, of all requests",
        "Otherwise it is that of the request, or the default server.",
    ),
    flag(&["--details"], "show the values that every rule compares, too", ""),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `hash-password`, after its usage.
pub const HASH_PASSWORD_ABOUT: &str = "Reads a password from standard input (twice and hidden on a terminal, otherwise one line) \
     and prints its hash (yescrypt) with a new salt. With a user it prints a line for the file of auth_basic_user_file: \
     tailwater hash-password alice >> users. The command line cannot contain the password, because \
     all users of the machine can read it.";

/// The options of `tailwater hash-password`.
pub const HASH_PASSWORD: &[Opt] = &[flag(&["-?", "-h", "--help"], "this help", "")];

/// Purpose of `js`, behind its usage.
pub const JS_ABOUT: &str = "Runs a module of JavaScript by hand, with the API that scripts of a configuration have, as far as it needs no request: \
     files are those of the user, console writes to standard output and standard error, and the arguments are in process.argv. - is standard \
     input. The command ends when nothing of the module is pending; an exception that nobody catches makes it fail.";

/// The options of `tailwater js`, in front of the file.
pub const JS: &[Opt] = &[flag(&["-?", "-h", "--help"], "this help", "")];
