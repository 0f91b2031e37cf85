//! Examples in the texts about directives: `tailwater -t` accepts each of them without a warning.
//!
//! An example is a part of a configuration. Each of its statements is put into the outermost block that may have it, and names that it
//! uses without a definition are defined ([`DEFINITIONS`]). Absolute paths lead into a directory with files of the usual names.

mod fixture;
mod statements;

use std::fmt::Write as _;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::thread;

use tw_conf::{Contexts, EVENTS, HTTP, LOCATION, MAIL, MAIL_SERVER, MAIN, SERVER, STREAM, STREAM_SERVER};
use tw_reference::directives::{Chapter, chapters};
use tw_reference::text::{modules, sections};
use tw_testkit::{Lacks, TempDir, leave_out};

use self::statements::statements;
use crate::examples::FENCE;

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tailwater");

/// Definitions of names that examples use: a text that is used, one that is there if the example has a definition itself, and the
/// definition in `http`.
const DEFINITIONS: &[(&str, &str, &str)] = &[
    ("://app", "upstream app", "upstream app { server 127.0.0.1:3000; }"),
    ("proxy_cache pages", "keys_zone=pages", "proxy_cache_path cache keys_zone=pages:1m;"),
    ("$is_purge", "$is_purge {", "map $request_method $is_purge { default 0; PURGE 1; }"),
    ("$is_allowed", "$is_allowed {", "map $host $is_allowed { default 0; www.example.com 1; }"),
    (
        "$connection_upgrade",
        "$connection_upgrade {",
        "map $http_upgrade $connection_upgrade { default upgrade; '' close; }",
    ),
    ("report_uploads uploads", "upload_progress uploads", "upload_progress uploads 1m;"),
    ("vhost_traffic_status_display;", "vhost_traffic_status_zone", "vhost_traffic_status_zone;"),
    ("js_access", "js_import", "js_import main.js;"),
    ("js_set", "js_import", "js_import main.js;"),
    (
        "listen 443 ",
        "ssl_certificate ",
        "ssl_certificate example.com.pem; ssl_certificate_key example.com.key;",
    ),
];

/// Blocks of a protocol: contexts of the outermost one, of its servers, and of all.
struct Protocol {
    block: &'static str,
    outer: Contexts,
    server: Contexts,
    all: Contexts,
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol { block: "http", outer: HTTP, server: SERVER, all: HTTP | SERVER | LOCATION },
    Protocol { block: "stream", outer: STREAM, server: STREAM_SERVER, all: STREAM | STREAM_SERVER },
    Protocol { block: "mail", outer: MAIL, server: MAIL_SERVER, all: MAIL | MAIL_SERVER },
];

/// An example with its place.
struct Example {
    module: &'static str,
    directive: &'static str,
    text: &'static str,
}

fn examples() -> Vec<Example> {
    let mut examples = Vec::new();
    for module in modules() {
        for (directive, text) in sections(module) {
            let blocks = text.split(FENCE).skip(1).filter_map(|rest| rest.split("```").next());
            examples.extend(blocks.map(|text| Example { module, directive, text }));
        }
    }
    examples
}

/// Statements of an example by their places.
#[derive(Default)]
struct Levels<'a> {
    main: Vec<&'a str>,
    events: Vec<&'a str>,
    outer: Vec<&'a str>,
    server: Vec<&'a str>,
    location: Vec<&'a str>,
}

impl Example {
    /// The example as a whole configuration.
    fn whole(&self, chapters: &[Chapter]) -> String {
        let protocol = self.protocol(chapters);
        let mut levels = Levels::default();
        for statement in statements(self.text) {
            let name = statement.split([' ', '\n', ';']).next().unwrap_or_default();
            levels.of(contexts(chapters, name), protocol).push(statement);
        }
        levels.write(protocol, self.text)
    }

    /// Protocol of the directive that the text is about.
    fn protocol(&self, chapters: &[Chapter]) -> &'static Protocol {
        let chapter = chapters.iter().find(|chapter| chapter.title == self.module).unwrap();
        let record = chapter.directives.iter().find(|record| record.name == self.directive).unwrap();
        let is_of = |protocol: &&Protocol| record.contexts & protocol.all != 0;
        PROTOCOLS.iter().find(is_of).unwrap_or(&PROTOCOLS[0])
    }
}

/// Contexts of all directives of this name.
fn contexts(chapters: &[Chapter], name: &str) -> Contexts {
    let all = chapters.iter().flat_map(|chapter| &chapter.directives);
    let contexts = all.filter(|record| record.name == name).fold(0, |all, record| all | record.contexts);
    // `include` is read by the language itself.
    if name == "include" { HTTP } else { contexts }
}

impl<'a> Levels<'a> {
    /// Place of a statement with these contexts: the outermost one.
    fn of(&mut self, contexts: Contexts, protocol: &Protocol) -> &mut Vec<&'a str> {
        match contexts {
            // A `server` may also stand in an upstream, an `upstream` in other protocols.
            contexts if contexts & MAIN != 0 => &mut self.main,
            contexts if contexts & EVENTS != 0 => &mut self.events,
            contexts if contexts & protocol.outer != 0 => &mut self.outer,
            contexts if contexts & protocol.server != 0 => &mut self.server,
            _ => &mut self.location,
        }
    }

    fn write(&self, protocol: &Protocol, text: &str) -> String {
        let mut whole = self.main.join("\n");
        if !self.main.iter().any(|statement| statement.starts_with("events")) {
            write!(whole, "\nevents {{ {} }}", self.events.join(" ")).unwrap();
        }
        let mut inner = String::new();
        for (used, defined, definition) in DEFINITIONS {
            if protocol.outer == HTTP && text.contains(used) && !text.contains(defined) {
                writeln!(inner, "{definition}").unwrap();
            }
        }
        inner.push_str(&self.outer.join("\n"));
        if !self.server.is_empty() || !self.location.is_empty() {
            let has_listen = self.server.iter().any(|statement| statement.starts_with("listen"));
            let listen = if has_listen { "" } else { "listen 127.0.0.1:143;" };
            write!(inner, "\nserver {{ {listen}\n{}\n", self.server.join("\n")).unwrap();
            if !self.location.is_empty() {
                write!(inner, "location / {{\n{}\n}}\n", self.location.join("\n")).unwrap();
            }
            inner.push_str("}\n");
        }
        if !inner.is_empty() {
            write!(whole, "\n{} {{\n{inner}\n}}\n", protocol.block).unwrap();
        }
        whole
    }
}

/// Output of the program about an example; empty if the example is valid.
fn complaint(example: &Example, chapters: &[Chapter], dir: &TempDir) -> Option<String> {
    let whole = fixture::with_paths_below(&example.whole(chapters), dir.path());
    let conf = dir.write("nginx.conf", &whole).unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("-tqp").arg(dir.path()).arg("-c").arg(conf);
    // The one directive that warns whenever it is used.
    let is_fault = example.directive == "debug_disk_fault";
    if is_fault {
        command.arg("--enable-fault-injection");
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let is_valid = output.status.success() && (is_fault || said.is_empty());
    (!is_valid).then(|| format!("{}.md, {}:\n{whole}\n{said}", example.module, example.directive))
}

#[test]
fn examples_of_directives_are_valid() {
    let chapters = chapters();
    let mut examples = examples();
    let scripts = Path::new(PROGRAM).with_file_name("tailwater-scripts");
    if !scripts.exists() {
        leave_out(Lacks::Machine, format_args!("no {}: cargo build -p tailwater-scripts", scripts.display()));
        examples.retain(|example| example.module != "js");
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let complaints: Vec<String> = thread::scope(|scope| {
        let parts = examples.chunks(examples.len().div_ceil(threads));
        let workers: Vec<_> = parts
            .map(|part| {
                let chapters = &chapters;
                scope.spawn(move || {
                    let dir = fixture::directory();
                    part.iter().filter_map(|example| complaint(example, chapters, &dir)).collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(complaints.is_empty(), "{} examples are not valid\n{}", complaints.len(), complaints.join("\n"));
}
