//! The records of the command line: `-h`, the manual page and the completions of shells are made of them.
//!
//! [`crate::cli`] reads the words, and a test there holds that it knows these options and no others. Nothing of the program
//! is used here, because the tests that write the documents include this file. Those of `tailwater top` are in its own crate.

#![allow(dead_code, reason = "what only the manual and the completions say is read by tests alone")]

use tw_base::command_line::{Kind, Opt, flag, with};

/// nginx's options and ours.
pub(crate) const MAIN: &[Opt] = &[
    flag(&["-?", "-h", "--help"], "this help", ""),
    flag(&["-v", "--version"], "show version and exit", ""),
    flag(
        &["-V"],
        "show version and what is built in, then exit",
        "The last line is in the words of nginx's configure script; programs that ask nginx for it understand it.",
    ),
    flag(
        &["-t"],
        "test configuration and exit; changes nothing, needs no privileges",
        "Status 0 if a server would start with it. Every error is reported, with suggestions.",
    ),
    flag(&["-T"], "test configuration, dump it and exit", "All files are written to standard output."),
    with(
        &["--explain"],
        ("URL", Kind::Text),
        "test configuration, tell which server, location and handlers would answer a request (or a session, tcp://host:port, udp://host:port or tls://name:port), and exit",
        "A path alone, such as /index.html, is for the only server, or the default server of the first address.",
    ),
    flag(&["-q"], "suppress non-error messages during configuration testing", ""),
    with(
        &["-s"],
        ("signal", Kind::Words(&["stop", "quit", "reopen", "reload"])),
        "tell the running server to: stop, quit, reopen, reload",
        "The server is found by its pid file. For a reload the command waits, and says what the server says about the \
         new configuration; status 1 if that is not taken over.",
    ),
    with(&["-p"], ("prefix", Kind::Directory), "where relative names begin (default: {prefix})", ""),
    with(
        &["-e"],
        ("filename", Kind::File),
        "error log if the configuration names none (default: logs/error.log)",
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
        "token that clients of the control API have to send (Authorization: Bearer)",
        "The first line of the file, which only its owner may read.",
    ),
    flag(
        &["--enable-fault-injection"],
        "let debug_disk_fault in the configuration make disk operations slow or fail, on purpose",
        "Without this option the directive is an error. For rehearsals, not for production.",
    ),
];

// For all commands with certificates.
const TLS: Opt = with(
    &["--tls"],
    ("name", Kind::Text),
    "listen with TLS as this host, on 443 of all addresses if nothing else is said; may stand several times",
    "The certificate is ordered, kept in the user's state directory ($XDG_STATE_HOME/tailwater/acme) and replaced in \
     time. The authority comes to port 443 of the name to see whose it is. For names and addresses of this machine and of \
     private networks (localhost, app.test, 192.168.0.2) the local authority of the user issues it, which tailwater trust \
     makes trusted; it listens on 127.0.0.1:8443, or the next free port, then.",
);
const ACCEPT_TERMS: Opt =
    flag(&["--accept-terms"], "accept the terms of service of the authority that issues the certificate", "");
const ACME_DIRECTORY: Opt = with(
    &["--acme-directory"],
    ("url", Kind::Text),
    "order from this authority (default: Let's Encrypt)",
    "",
);
const ACME_CA: Opt = with(
    &["--acme-ca"],
    ("file", Kind::File),
    "trust these certificates (PEM) that it is the authority, for one of your own",
    "",
);

/// Purpose of `serve`, after its usage.
pub(crate) const SERVE_ABOUT: &str = "Serves a directory (default: the current one) until Ctrl-C. Listings are on; files \
     and directories whose names begin with a dot are neither listed nor served.";

/// The options of `tailwater serve [directory]`.
pub(crate) const SERVE: &[Opt] = &[
    with(
        &["-l", "--listen"],
        ("address", Kind::Text),
        "port, address or address:port (default: 127.0.0.1:8080, or the next free port)",
        "A port alone is on the loopback interface; 0.0.0.0 opens it to other machines.",
    ),
    flag(&["--spa"], "answer with index.html for paths that are not there", ""),
    with(
        &["--php"],
        ("address", Kind::Text),
        "run .php files with the PHP at unix:path or host:port, and index.php for paths that are not there",
        "Listings are off then. Nothing is passed on that is no file in the directory.",
    ),
    flag(&["--compress"], "compress text with what the client takes (gzip, br, zstd)", ""),
    with(
        &["--auth"],
        ("user:password", Kind::Text),
        "ask for a name and a password; - reads them from standard input, because others can see command lines",
        "",
    ),
    TLS,
    ACCEPT_TERMS,
    ACME_DIRECTORY,
    ACME_CA,
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `proxy`, after its usage.
pub(crate) const PROXY_ABOUT: &str = "Passes requests on to the servers at these URLs (http://host:port, \
     https://host:port, host:port, a port of this machine, or unix:path) until Ctrl-C. Several are asked in turn, and one that fails is left out for a second. \
     They get the Host of the client, X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and X-Real-IP; WebSockets \
     pass. What is wrong with a server is said on standard error.";

/// The options of `tailwater proxy URL...`.
pub(crate) const PROXY: &[Opt] = &[
    with(
        &["-l", "--listen"],
        ("address", Kind::Text),
        "port, address or address:port (default: 127.0.0.1:8080, or the next free port)",
        "A port alone is on the loopback interface; 0.0.0.0 opens it to other machines.",
    ),
    flag(
        &["--change-host"],
        "send the host of the URL as Host, for servers that look at it",
        "The client's is still in X-Forwarded-Host. Redirections to the URL lead here. Servers of https get it without \
         being asked: it is what their certificates are for.",
    ),
    flag(
        &["--insecure"],
        "take any certificate of https servers, unchecked",
        "Else it has to be of an authority that the system trusts, or of the local one, and for the host of the URL.",
    ),
    with(
        &["--timeout"],
        ("time", Kind::Text),
        "how long a server may be silent (default: 60s); tunnels, as of WebSockets: an hour",
        "A number is of seconds; 500ms, 5m and 1h are other units.",
    ),
    with(
        &["--cache"],
        ("directory", Kind::Directory),
        "keep responses there, for as long as they say that they are valid; it is made if it is missing",
        "Many who ask for the same at once are one request. While a server fails or is asked anew, what is no longer \
         valid answers; X-Cache-Status says what the cache had. Whoever has to say who they are (Authorization) is \
         answered by the servers.",
    ),
    with(&["--cache-size"], ("size", Kind::Text), "how much is kept at most (default: 10g)", ""),
    TLS,
    ACCEPT_TERMS,
    ACME_DIRECTORY,
    ACME_CA,
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `purge`, after its usage.
pub(crate) const PURGE_ABOUT: &str = "Removes from a cache of the running server what has this key, with all its variants; a * \
     at the end stands for all keys that begin like it. It is not used again from the moment in which the command ends, and \
     a restart does not bring it back. The server is found by its pid file, as by -s; only root and the user who runs it \
     may order this. The key is the text that proxy_cache_key makes of a request; tailwater --explain URL tells it.";

/// The options of `tailwater purge KEY`.
pub(crate) const PURGE: &[Opt] = &[
    with(&["--cache"], ("name", Kind::Text), "the cache, by the name of its keys_zone", ""),
    with(
        &["--tag"],
        ("tag", Kind::Text),
        "in the place of a key: all responses with this tag (proxy_cache_tag)",
        "",
    ),
    flag(
        &["--soft"],
        "make it stale: it answers while the server behind cannot, or has yet to",
        "As far as proxy_cache_use_stale allows that.",
    ),
    with(&["-c"], ("filename", Kind::File), "configuration file of the server (default: {file})", ""),
    with(&["-p"], ("prefix", Kind::Directory), "where relative names begin (default: {prefix})", ""),
    with(&["-g"], ("directives", Kind::Text), "directives before those of the configuration file", ""),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `cache`, after its usage.
pub(crate) const CACHE_ABOUT: &str = "Looks into directories of caches (proxy_cache_path, and each member of one), whether their server runs or \
     not, with store=files and store=log. Nothing is changed, unless --remove says so. stat shows number, size and age of the responses, how much of the segments is in use, the age of \
     the snapshot, and the purges. check compares every checksum and lists what is damaged, with path, offset and key. export writes \
     responses into an archive, or a list of them; damaged and purged ones are left out. format prepares a block device, or a file of the wanted \
     size, for the segments of a cache with store=log device=DEVICE; the device has to be empty: a file system or a partition table on it is \
     never overwritten.";

const CACHE_JSON: Opt = flag(&["--json"], "JSON: an object for each directory, or for each response", "");
const CACHE_RATE: Opt = with(
    &["--rate"],
    ("size", Kind::Text),
    "read no more than so many bytes of bodies in a second, such as 50m",
    "For all threads together.",
);
const HELP: Opt = flag(&["-?", "-h", "--help"], "this help", "");

/// The options of `tailwater cache stat DIRECTORY...`.
pub(crate) const CACHE_STAT: &[Opt] = &[
    flag(
        &["--quick"],
        "do not read the heads of responses in segments",
        "What was removed of them and their ages are unknown then.",
    ),
    CACHE_JSON,
    HELP,
];

/// The options of `tailwater cache check DIRECTORY...`.
pub(crate) const CACHE_CHECK: &[Opt] = &[
    with(&["--jobs"], ("number", Kind::Text), "threads that read (default: 2)", "At most 64."),
    CACHE_RATE,
    flag(
        &["--remove"],
        "remove damaged responses, so that they are fetched again",
        "A running server takes them for misses.",
    ),
    HELP,
];

/// The options of `tailwater cache export DIRECTORY...`.
pub(crate) const CACHE_EXPORT: &[Opt] = &[
    with(
        &["--key-prefix"],
        ("text", Kind::Text),
        "only responses whose keys begin like this",
        "The key is the text that proxy_cache_key makes.",
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
pub(crate) const CACHE_FORMAT: &[Opt] = &[
    with(
        &["--segment"],
        ("size", Kind::Text),
        "size of segments (4m to 1g; default: by the size of the device)",
        "",
    ),
    flag(&["--again"], "format a device that has segments of a cache; they are lost", ""),
    HELP,
];

/// Purpose of `fleet`, after its usage.
pub(crate) const FLEET_ABOUT: &str = "status shows the fleets of the running server: the connection to the engine, and of each node the sequence up to \
     which it has applied purges, how many it lacks, how many wait on its disk, its version, and its configuration. The server is found by \
     its pid file, as by -s; only root and the user who runs it may ask. key makes the key that signs configurations. push stores the \
     configuration file and its includes as a version, diff compares them with one. rollout orders the nodes, wave by wave, to take a \
     version over, and rolls it back if a node refuses it or is not healthy; rollback orders all nodes back to what they had before. \
     follow runs on a node, beside the server: it tests a version, switches to it, and has the server reload.";

/// The options of `tailwater fleet`.
pub(crate) const FLEET: &[Opt] = &[
    with(&["-c"], ("filename", Kind::File), "configuration file of the server (default: {file})", ""),
    with(&["-p"], ("prefix", Kind::Directory), "where relative names begin (default: {prefix})", ""),
    with(&["-g"], ("directives", Kind::Text), "directives before those of the configuration file", ""),
    with(
        &["--key"],
        ("file", Kind::File),
        "private key that signs versions and orders",
        "The public key is in the file beside it, with .pub.",
    ),
    with(&["--trust"], ("file", Kind::File), "follow: public key whose orders the node obeys", ""),
    with(
        &["--directory"],
        ("path", Kind::Directory),
        "follow: directory of the versions, with the link current",
        "",
    ),
    with(
        &["--metrics"],
        ("URL", Kind::Text),
        "follow: metrics of the node, as http://127.0.0.1:8080/metrics",
        "",
    ),
    with(&["--author"], ("name", Kind::Text), "push: who pushes (default: the user)", ""),
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
        "rollout: responses 5xx of a healthy node (default: 5)",
        "",
    ),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `trust`, behind its usage.
pub(crate) const TRUST_ABOUT: &str = "Makes the system trust the local authority of this user, which issues the certificates of \
     --tls for names of this machine and of private networks, and for no others. It is made if there is none, and kept in \
     the user's data directory ($XDG_DATA_HOME/tailwater/authority). If this user may not change the store of the system, the \
     command for who may is told.";

/// The options of `tailwater trust`.
pub(crate) const TRUST: &[Opt] = &[
    flag(&["--remove"], "do not trust it any more", ""),
    with(
        &["--store"],
        ("directory", Kind::Directory),
        "put its certificate into this directory instead of the store of the system",
        "Nothing else is done then: no command makes it known.",
    ),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Purpose of `hash-password`, after its usage.
pub(crate) const HASH_PASSWORD_ABOUT: &str = "Reads a password from standard input, twice and without showing it on a terminal, one line \
     otherwise, and prints its hash (yescrypt) with a new salt: with a user a line for the file of auth_basic_user_file, as \
     tailwater hash-password alice >> users, without one the hash alone. A password is never taken from the command line, \
     which all users of the machine can read.";

/// The options of `tailwater hash-password`.
pub(crate) const HASH_PASSWORD: &[Opt] = &[flag(&["-?", "-h", "--help"], "this help", "")];
