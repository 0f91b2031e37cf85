//! Options and keys as records. Nothing of the program is used here, because the tests that write the documents include this file.

use tw_base::command_line::{Kind, Opt, flag, with};

/// Purpose, after the usage.
pub const ABOUT: &str = "Shows a running Tailwater in a terminal: event loops, disks, caches, upstream servers, the slowest requests \
     and connections. The URL is that of a location with status_page, as http://host:port/path or https://host:port/path, \
     host:port/path, a port of this machine, or unix:/socket:/path (default: http://127.0.0.1/status). That of a location with \
     metrics shows all but stalls, requests and mount points. With --control, no location is needed.";

/// Names of the tables.
pub const PANES: [&str; 6] = ["loops", "disks", "caches", "upstreams", "requests", "connections"];

/// All options.
pub const TOP: &[Opt] = &[
    with(
        &["-n", "--interval"],
        ("seconds", Kind::Text),
        "time between two reads, 0.1 to 3600 (default: 1)",
        "",
    ),
    flag(
        &["-1", "--once"],
        "print everything once, as plain text, and exit",
        "The server is read twice, because rates are differences. Status 1 if it cannot be read.",
    ),
    with(
        &["--control"],
        ("address", Kind::Text),
        "read the control API at this address instead of a URL",
        "As the option -l of the server has it: unix:/path, a port of this machine, or host:port.",
    ),
    with(
        &["--control-token"],
        ("file", Kind::File),
        "file with the token of the control API",
        "Its first line is the token. A Unix socket needs none.",
    ),
    with(
        &["--ca"],
        ("file", Kind::File),
        "https: authorities that are trusted, in PEM (default: those of the system)",
        "",
    ),
    flag(&["--insecure"], "https: do not verify the certificate of the server", ""),
    with(
        &["-t", "--table"],
        ("table", Kind::Words(&PANES)),
        "table that is selected first; with --once: the only one",
        "",
    ),
    with(&["-f", "--filter"], ("text", Kind::Text), "only rows with this text", ""),
    with(
        &["-H", "--header"],
        ("field", Kind::Text),
        "field of the requests, as \"Authorization: Basic ...\"; may stand several times",
        "Others of this machine can see it in the list of processes.",
    ),
    flag(&["--no-color"], "no colours (also: NO_COLOR in the environment)", ""),
    flag(&["-v", "--version"], "show version and exit", ""),
    flag(&["-?", "-h", "--help"], "this help", ""),
];

/// Keys with their meaning, for the help of the screen and the manual.
pub const KEYS: &[(&str, &str)] = &[
    ("q, F10", "quit"),
    ("Tab, Shift-Tab", "next and previous table; also 1 to 6"),
    ("arrows, PgUp, PgDn, Home, End", "select a row"),
    ("s, F6", "sort by the next column; S: by the previous one"),
    ("i", "invert the order"),
    ("/, F4", "filter rows; Enter keeps, Esc removes the filter"),
    ("p, Space", "pause; again: go on"),
    ("h, ?, F1", "help"),
];
