//! Manual pages of `tailwater` and the programs beside it, in `packaging/man`

use std::fmt::Write as _;

use tailwater_commands::options::{
    CACHE_ABOUT, CACHE_CHECK, CACHE_EXPORT, CACHE_FORMAT, CACHE_STAT, FLEET, FLEET_ABOUT, HASH_PASSWORD,
    HASH_PASSWORD_ABOUT, JS_ABOUT, MAIN, PROXY, PROXY_ABOUT, PURGE, PURGE_ABOUT, SERVE, SERVE_ABOUT, TRUST,
    TRUST_ABOUT, WAF, WAF_ABOUT,
};
use tw_base::command_line::Opt;
use tw_conf::context_words;
use tw_reference::directives::{Chapter, chapters};

use crate::{NOTE, check_file, ingress_options, top_options};

/// Directory of relative names, and the configuration file, of a build without settings of its own; packages put
/// theirs in their place.
const PREFIX: &str = "/usr/local/tailwater/";
const FILE: &str = "conf/nginx.conf";

const DESCRIPTION: &[&str] = &[
    "Tailwater is a web server that reads nginx.conf. Its event loops never wait for a disk: what is not in memory is read \
     by threads, while every other request goes on.",
    "Without options the server starts, in the background unless the configuration says \"daemon off\". The command returns \
     when it serves, or says why it does not and returns 1.",
];

const SIGNALS: &[(&str, &str)] = &[
    ("TERM, INT", "end at once"),
    ("QUIT", "end when the requests are done, after worker_shutdown_timeout at the latest"),
    (
        "HUP",
        "read the configuration again; connections stay, and the old configuration if the new one is refused",
    ),
    ("USR1", "open the logs again"),
    ("USR2", "start the binary that is now in this one's place beside it, with the same sockets"),
    ("WINCH", "serve nobody any more, but stay (in the background only)"),
];

const STATUS: &[(&str, &str)] = &[
    ("0", "The server has started, or it has ended as it was told to, or an order or a test has succeeded."),
    ("1", "It has not started, or an order or a test has failed. Standard error says why."),
    ("70", "A worker process ended after a fault of its own that left shared data half changed."),
    ("71", "A worker process ended because a loop hung and loop_watchdog says \"restart\"."),
];

/// Text as it is: roff takes a backslash, a leading dot or apostrophe, and a dash for something else.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "");
    let text = text.replace('…', "...").replace('–', "\\(en").replace('→', "\\(->").replace('µ', "\\(mc");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

fn entry(option: &Opt, out: &mut String) {
    let names: Vec<_> = option.names.iter().map(|name| format!("\\fB{}\\fR", plain(name))).collect();
    let value = option.value.as_ref().map(|value| format!(" \\fI{}\\fR", plain(value.name)));
    let about = option.about.replace("{prefix}", PREFIX).replace("{file}", FILE);
    let about = about[..1].to_uppercase() + &about[1..];
    writeln!(out, ".TP\n{}{}\n{}.", names.join(", "), value.unwrap_or_default(), plain(&about)).unwrap();
    if !option.more.is_empty() {
        writeln!(out, "{}", plain(option.more)).unwrap();
    }
}

fn table(rows: &[(&str, &str)], out: &mut String) {
    for (key, text) in rows {
        writeln!(out, ".TP\n\\fB{}\\fR\n{}", plain(key), plain(text)).unwrap();
    }
}

fn paragraphs(texts: &[&str], out: &mut String) {
    for text in texts {
        writeln!(out, ".PP\n{}", plain(text)).unwrap();
    }
}

fn directives(out: &mut String) {
    for Chapter { title, directives } in chapters() {
        writeln!(out, ".SS {}", plain(title)).unwrap();
        for directive in directives {
            let end = if directive.syntax.ends_with('}') { "" } else { ";" };
            let gap = if directive.syntax.is_empty() { "" } else { " " };
            writeln!(out, ".TP\n\\fB{}\\fR{gap}{}{end}", plain(directive.name), plain(directive.syntax))
                .unwrap();
            writeln!(out, "{}\n.br", plain(directive.doc)).unwrap();
            if let Some(default) = directive.default {
                writeln!(out, "Default: {} {};\n.br", plain(directive.name), plain(default)).unwrap();
            }
            writeln!(out, "Context: {}", plain(&context_words(directive.contexts))).unwrap();
        }
    }
}

#[test]
fn the_manual_is_documented() {
    let mut out = format!(".\\\" {NOTE}\n");
    let version = env!("CARGO_PKG_VERSION");
    writeln!(out, ".TH TAILWATER 8 \"\" \"tailwater {version}\" \"System Manager's Manual\"").unwrap();
    // A command is read as it is typed: no hyphens, no filled lines.
    writeln!(out, ".nh\n.ad l\n.SH NAME\ntailwater \\- web server that reads nginx.conf").unwrap();
    writeln!(out, ".SH SYNOPSIS\n.B tailwater\n[\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater serve\n[\\fIdirectory\\fR] [\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater proxy\n\\fIURL\\fR... [\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater purge \\-\\-cache\n\\fIname\\fR \\fIkey\\fR [\\fIoptions\\fR]\n.br").unwrap();
    for word in ["stat", "check", "export"] {
        writeln!(out, ".B tailwater cache {word}\n\\fIdirectory\\fR... [\\fIoptions\\fR]\n.br").unwrap();
    }
    writeln!(out, ".B tailwater cache format\n\\fIdevice\\fR [\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater fleet\n\\fIword\\fR [\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater trust\n[\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater hash\\-password\n[\\fIuser\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater top\n[\\fIURL\\fR] [\\fIoptions\\fR]\n.br").unwrap();
    writeln!(out, ".B tailwater js\n\\fIfile\\fR [\\fIargument\\fR...]\n.br").unwrap();
    writeln!(out, ".B tailwater help\n[\\fIname\\fR]").unwrap();
    out.push_str(".SH DESCRIPTION\n");
    paragraphs(DESCRIPTION, &mut out);
    out.push_str(
        ".SH OPTIONS\nOptions may be combined (\\fB\\-tq\\fR), and a value may follow its option at once.\n",
    );
    MAIN.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH SERVE\n");
    paragraphs(&[SERVE_ABOUT, "No configuration file is read."], &mut out);
    SERVE.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH PROXY\n");
    paragraphs(&[PROXY_ABOUT, "No configuration file is read."], &mut out);
    PROXY.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH PURGE\n");
    let said = "If nothing has this key, that is said, and the status is 0: the cache is as it was wanted.";
    paragraphs(&[PURGE_ABOUT, said], &mut out);
    PURGE.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH CACHE\n");
    let said = "Status 0: all is well; 1: something is damaged; 2: something could not be read, or the command line is wrong.";
    paragraphs(&[CACHE_ABOUT, said], &mut out);
    for (word, options) in
        [("stat", CACHE_STAT), ("check", CACHE_CHECK), ("export", CACHE_EXPORT), ("format", CACHE_FORMAT)]
    {
        writeln!(out, ".SS cache {word}").unwrap();
        options.iter().for_each(|option| entry(option, &mut out));
    }
    out.push_str(".SH FLEET\n");
    paragraphs(&[FLEET_ABOUT], &mut out);
    FLEET.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH TRUST\n");
    paragraphs(&[TRUST_ABOUT], &mut out);
    TRUST.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH WAF\n");
    paragraphs(&[WAF_ABOUT], &mut out);
    WAF.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH HASH\\-PASSWORD\n");
    paragraphs(&[HASH_PASSWORD_ABOUT], &mut out);
    HASH_PASSWORD.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH TOP\n");
    paragraphs(
        &["Starts tailwater-top with the same words, if it is installed: see tailwater-top(1)."],
        &mut out,
    );
    out.push_str(".SH JS\n");
    paragraphs(&[JS_ABOUT], &mut out);
    out.push_str(".SH SIGNALS\nThe process to signal is the master, whose number is in the pid file.\n");
    table(SIGNALS, &mut out);
    out.push_str(".SH FILES\n");
    let named = |file: &str| if file.starts_with('/') { file.to_owned() } else { format!("{PREFIX}{file}") };
    let files = [
        (named(FILE), "The configuration."),
        (named("logs/nginx.pid"), "The number of the master, unless \"pid\" names another file."),
        (named("logs/error.log"), "The error log, unless \"error_log\" names another one."),
    ];
    for (file, text) in files {
        writeln!(out, ".TP\n\\fI{}\\fR\n{}", plain(&file), plain(text)).unwrap();
    }
    out.push_str(".SH EXIT STATUS\n");
    table(STATUS, &mut out);
    out.push_str(".SH DIRECTIVES\n");
    paragraphs(
        &[
            "Names, arguments, defaults and contexts are nginx's where nginx has the directive. [ ] may be left out, | \
           separates alternatives, and what is repeated ends in dots. Sizes may end in k, m or g, times in ms, s, m, h, d \
           and longer units.",
        ],
        &mut out,
    );
    directives(&mut out);
    check_file("packaging/man/tailwater.8", &out);
}

#[test]
fn the_manual_of_top_is_documented() {
    let mut out = format!(".\\\" {NOTE}\n");
    let version = env!("CARGO_PKG_VERSION");
    writeln!(out, ".TH TAILWATER\\-TOP 1 \"\" \"tailwater {version}\" \"User Commands\"").unwrap();
    writeln!(out, ".nh\n.ad l\n.SH NAME\ntailwater\\-top \\- show a running Tailwater in a terminal")
        .unwrap();
    writeln!(out, ".SH SYNOPSIS\n.B tailwater\\-top\n[\\fIURL\\fR] [\\fIoptions\\fR]").unwrap();
    out.push_str(".SH DESCRIPTION\n");
    paragraphs(&[top_options::ABOUT], &mut out);
    out.push_str(".SH OPTIONS\n");
    top_options::TOP.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH KEYS\n");
    table(top_options::KEYS, &mut out);
    out.push_str(".SH ENVIRONMENT\n");
    table(&[("NO_COLOR", "No colours, if it is set and not empty.")], &mut out);
    out.push_str(".SH EXIT STATUS\n");
    let statuses = [
        ("0", "The screen was left, or everything was printed."),
        ("1", "The server cannot be read, or this is no terminal for screens."),
        ("2", "The command line is wrong."),
    ];
    table(&statuses, &mut out);
    out.push_str(".SH SEE ALSO\n.BR tailwater (8)\n");
    check_file("packaging/man/tailwater-top.1", &out);
}

#[test]
fn the_manual_of_ingress_is_documented() {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(".\\\" {NOTE}\n");
    writeln!(out, ".TH TAILWATER\\-INGRESS 8 \"\" \"tailwater {version}\" \"System Manager's Manual\"")
        .unwrap();
    writeln!(out, ".nh\n.ad l\n.SH NAME\ntailwater\\-ingress \\- ingress controller for Kubernetes").unwrap();
    out.push_str(".SH SYNOPSIS\n.B tailwater\\-ingress\n[\\fIoptions\\fR]\n.SH DESCRIPTION\n");
    paragraphs(
        &[
            ingress_options::ABOUT,
            "Changed endpoints take effect without a reload. Every other change is checked before it is loaded; an object that the server \
             refuses is left out, and has an Event that says why.",
        ],
        &mut out,
    );
    out.push_str(".SH OPTIONS\n");
    ingress_options::OPTIONS.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH SIGNALS\n");
    table(
        &[("TERM, INT, QUIT", "end when the requests of the server are done; the second signal ends them")],
        &mut out,
    );
    out.push_str(".SH ENVIRONMENT\n");
    table(
        &[
            (
                "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT",
                "Address of the API server, without \u{2d}\u{2d}apiserver.",
            ),
            ("POD_NAME, POD_NAMESPACE", "Name and namespace of the pod, for the Lease."),
        ],
        &mut out,
    );
    out.push_str(".SH FILES\n");
    table(
        &[
            ("/run/tailwater-ingress", "Configuration, certificates and keys, sockets, bodies of requests."),
            (
                "/var/run/secrets/kubernetes.io/serviceaccount",
                "Token, and authorities of the API server, without options for them.",
            ),
        ],
        &mut out,
    );
    out.push_str(".SH EXIT STATUS\n");
    table(
        &[
            ("0", "It was told to end, and the server has ended."),
            ("1", "It could not start. Standard error says why."),
            ("2", "The command line is wrong."),
        ],
        &mut out,
    );
    out.push_str(".SH SEE ALSO\n.BR tailwater (8)\n");
    check_file("packaging/man/tailwater-ingress.8", &out);
}

#[test]
fn the_manual_of_slowdisk_is_documented() {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(".\\\" {NOTE}\n");
    writeln!(out, ".TH TAILWATER\\-SLOWDISK 8 \"\" \"tailwater {version}\" \"System Manager's Manual\"")
        .unwrap();
    writeln!(
        out,
        ".nh\n.ad l\n.SH NAME\ntailwater\\-slowdisk \\- a directory as a disk that is slow or fails"
    )
    .unwrap();
    writeln!(
        out,
        ".SH SYNOPSIS\n.B tailwater\\-slowdisk\n\\fIdirectory\\fR \\fImount\\-point\\fR [\\fIoptions\\fR]"
    )
    .unwrap();
    out.push_str(".SH DESCRIPTION\n");
    paragraphs(
        &[
            tw_slowdisk::ABOUT,
            "It needs /dev/fuse, and root or the program fusermount3. A mount by another user than root is for that user only.",
            tw_slowdisk::LINES,
        ],
        &mut out,
    );
    out.push_str(".SH OPTIONS\n");
    tw_slowdisk::OPTIONS.iter().for_each(|option| entry(option, &mut out));
    out.push_str(".SH SIGNALS\n");
    table(&[("TERM, INT, HUP", "unmount and end; operations that wait go on")], &mut out);
    out.push_str(".SH EXIT STATUS\n");
    table(
        &[
            ("0", "It was told to end, or the disk was unmounted."),
            ("1", "The disk could not be mounted. Standard error says why."),
        ],
        &mut out,
    );
    out.push_str(".SH SEE ALSO\n.BR tailwater (8)\n");
    check_file("packaging/man/tailwater-slowdisk.8", &out);
}

#[test]
fn text_is_no_request() {
    for (text, expected) in [
        (".conf", "\\&.conf"),
        ("'a'", "\\(aqa\\(aq"),
        ("a\\b", "a\\eb"),
        ("-t", "\\-t"),
        ("a | b…", "a | b..."),
    ] {
        assert_eq!(plain(text), expected, "{text}");
    }
}
