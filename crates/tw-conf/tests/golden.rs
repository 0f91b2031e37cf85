//! Golden files: a configuration, a line `---`, and the expected result; `UPDATE=1` rewrites the part after the line.
//!
//! `golden/syntax/*.conf` show the tree with nginx's line for each directive, `golden/check/*.conf` the messages for
//! the small set of directives below. `=== NAME` begins another file, `=== -g` the text of that option.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;
use tw_conf::*;

/// The settings of the directives that the files of `golden/check` use.
#[derive(Debug, Default)]
struct Raw {
    worker_processes: Setting<usize>,
    listing: Setting<bool>,
    listing_format: Setting<&'static str>,
    timeout: Setting<Duration>,
    age: Setting<Duration>,
    buffer_size: Setting<usize>,
    max_size: Setting<u64>,
    buffers: Setting<Buffers>,
    methods: Setting<u32>,
    root: Setting<Box<[u8]>>,
    headers: Setting<Vec<String>>,
}

const ALL: Contexts = HTTP | SERVER | LOCATION;

const FORMATS: &[(&str, &str)] = &[("html", "html"), ("json", "json")];
const METHODS: &[(&str, u32)] = &[("GET", 1), ("HEAD", 2), ("POST", 4)];

const DIRECTIVES: &[Directive<Raw>] = &[
    record::new("http", "{ … }", MAIN, Args::NONE.block()).set(|_, _, _| Ok(())),
    record::new("server", "{ … }", HTTP, Args::NONE.block()).set(|_, _, _| Ok(())),
    record::new("location", "[=] path { … }", SERVER | LOCATION, Args::range(1, 2).block())
        .set(|_, _, _| Ok(())),
    record::number("worker_processes", MAIN).set(|raw, node, _| raw.worker_processes.set_number(node)),
    record::flag("listing", ALL | IF_IN_LOCATION)
        .default("off")
        .set(|raw, node, _| raw.listing.set_flag(node)),
    record::new("listing_format", "html | json", ALL, Args::exact(1))
        .set(|raw, node, _| raw.listing_format.set_one_of(node, FORMATS)),
    record::time("timeout", ALL).set(|raw, node, _| raw.timeout.set_msec(node)),
    record::time("age", ALL).set(|raw, node, _| raw.age.set_sec(node)),
    record::size("buffer_size", ALL).set(|raw, node, _| raw.buffer_size.set_size(node)),
    record::size("max_size", ALL).set(|raw, node, _| raw.max_size.set_offset(node)),
    record::buffers("buffers", ALL).set(|raw, node, _| raw.buffers.set_buffers(node)),
    record::new("methods", "method …", ALL, Args::at_least(1))
        .set(|raw, node, cx| raw.methods.add_bits(node, METHODS, cx)),
    record::new("root", "path", ALL, Args::exact(1)).set(|raw, node, _| raw.root.set_bytes(node)),
    record::new("header", "name [value]", ALL, Args::range(1, 2)).set(|raw, node, _| {
        raw.headers.push(node, node.arg(0)?.to_string());
        Ok(())
    }),
];

/// Context inside the blocks of the directives above.
fn inside(name: &str) -> Contexts {
    match name {
        "http" => HTTP,
        "server" => SERVER,
        _ => LOCATION,
    }
}

struct Walk<'a> {
    sources: &'a Sources,
    supported: Vec<DirectiveInfo>,
    diagnostics: Diagnostics,
    out: String,
}

impl Walk<'_> {
    /// Applies the directives of a block, shows their settings, and continues after errors.
    fn block(&mut self, nodes: &[Node], context: Contexts) {
        let mut raw = Raw::default();
        for node in nodes {
            if let Err(error) = self.directive(&mut raw, node, context) {
                let record = |name: &str| DIRECTIVES.iter().find(|record| record.name == name);
                let info = node.name.as_str().and_then(record).map(Directive::info);
                let error = advise(error, node, info.as_ref(), self.sources, |name| record(name).is_some());
                self.diagnostics.push(error);
            }
        }
        let _ = writeln!(self.out, "{}:{}", context_words(context), set_fields(&raw));
    }

    fn directive(&mut self, raw: &mut Raw, node: &Node, context: Contexts) -> Result<(), ConfError> {
        let record =
            DIRECTIVES.iter().find(|record| node.name.is(record.name) && record.contexts & context != 0);
        let record = record.ok_or_else(|| reject(node, context, &self.supported, Guess::Nearest))?;
        check(node, &record.info(), context)?;
        let mut cx = Cx {
            sources: self.sources,
            diagnostics: &mut self.diagnostics,
            prefix: b"/p/",
            conf_prefix: b"/p/conf/",
            context,
        };
        (record.set)(raw, node, &mut cx)?;
        if let Some(children) = &node.block {
            self.block(children, inside(record.name));
        }
        Ok(())
    }
}

/// The fields of the settings that are set.
fn set_fields(raw: &Raw) -> String {
    let mut fields = Vec::new();
    let mut field =
        |name: &str, value: Option<String>| fields.extend(value.map(|value| format!(" {name}={value}")));
    field("worker_processes", raw.worker_processes.get().map(ToString::to_string));
    field("listing", raw.listing.get().map(ToString::to_string));
    field("listing_format", raw.listing_format.get().map(ToString::to_string));
    field("timeout", raw.timeout.get().map(|timeout| format!("{timeout:?}")));
    field("age", raw.age.get().map(|age| format!("{age:?}")));
    field("buffer_size", raw.buffer_size.get().map(ToString::to_string));
    field("max_size", raw.max_size.get().map(ToString::to_string));
    field("buffers", raw.buffers.get().map(|buffers| format!("{}x{}", buffers.count, buffers.size)));
    field("methods", raw.methods.get().map(|bits| format!("{bits:#b}")));
    field("root", raw.root.get().map(|root| String::from_utf8_lossy(root).into_owned()));
    field("header", raw.headers.get().map(|headers| headers.join("+")));
    fields.concat()
}

/// Reads the files of a golden input; the first text is the main file.
fn read(input: &str, tree: &mut Tree) -> Result<(), ConfError> {
    let mut files = MemoryFiles::default();
    let mut param = None;
    let (main, more) = input.split_once("=== ").unwrap_or((input, ""));
    files.insert("nginx.conf", main);
    for part in more.split("\n=== ").filter(|part| !part.is_empty()) {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        match name {
            "-g" => param = Some(text.trim_end()),
            name => files.insert(name, text),
        }
    }
    let reader = Reader::new(&files, b"");
    if let Some(param) = param {
        reader.command_line(tree, param.as_bytes())?;
    }
    reader.file(tree, b"nginx.conf")
}

/// The tree with the place nginx would name before each directive.
fn outline(tree: &Tree, nodes: &[Node], depth: usize, out: &mut String) {
    let place = |span| tree.sources.tail(span).replace(" in ", "");
    for node in nodes {
        let mut line = Vec::new();
        write_nodes(&[Node { block: None, ..node.clone() }], &mut line);
        let line = String::from_utf8_lossy(&line);
        let indent = "    ".repeat(depth);
        let line = line.trim_end().trim_end_matches(';');
        match &node.block {
            None => drop(writeln!(out, "{:<16} {indent}{line};", place(node.span))),
            Some(children) => {
                let _ = writeln!(out, "{:<16} {indent}{line} {{", place(node.span));
                outline(tree, children, depth + 1, out);
                let _ = writeln!(out, "{:<16} {indent}}}", place(node.end));
            }
        }
    }
}

fn terminal(error: &ConfError, sources: &Sources) -> String {
    let diagnostic = Diagnostic { error, sources };
    assert!(diagnostic.terminal(false).starts_with(&diagnostic.to_string()));
    diagnostic.terminal(false) + "\n"
}

fn syntax(input: &str) -> String {
    let mut tree = Tree::default();
    match read(input, &mut tree) {
        Err(error) => terminal(&error, &tree.sources),
        Ok(()) => {
            let mut out = String::new();
            outline(&tree, &tree.nodes, 0, &mut out);
            out
        }
    }
}

fn checked(input: &str) -> String {
    let mut tree = Tree::default();
    if let Err(error) = read(input, &mut tree) {
        return terminal(&error, &tree.sources);
    }
    let supported = DIRECTIVES.iter().map(Directive::info).collect();
    let diagnostics = Diagnostics::default();
    let mut walk = Walk { sources: &tree.sources, supported, diagnostics, out: String::new() };
    walk.block(&tree.nodes, MAIN);
    let mut out = walk.out;
    for error in walk.diagnostics.iter() {
        out += &terminal(error, &tree.sources);
    }
    out
}

/// Runs every file of a directory and compares, or rewrites, what follows its `---`.
fn golden(directory: &str, run: fn(&str) -> String) -> io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(directory);
    let update = std::env::var_os("UPDATE").is_some();
    let entries = std::fs::read_dir(&directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<_> = entries.iter().map(std::fs::DirEntry::path).collect();
    names.sort();
    let mut wrong = Vec::new();
    for name in &names {
        let text = std::fs::read_to_string(name)?;
        let (input, expected) = text.split_once("\n---\n").unwrap_or((text.trim_end(), ""));
        let actual = run(input);
        if actual == expected {
            continue;
        }
        if update {
            std::fs::write(name, format!("{input}\n---\n{actual}"))?;
        } else {
            wrong.push(format!("{}\nexpected:\n{expected}\nactual:\n{actual}", name.display()));
        }
    }
    assert!(!names.is_empty(), "no golden files in {}", directory.display());
    assert!(wrong.is_empty(), "{}\nUPDATE=1 accepts what is", wrong.join("\n\n"));
    Ok(())
}

#[test]
fn golden_syntax() -> io::Result<()> {
    golden("syntax", syntax)
}

#[test]
fn golden_check() -> io::Result<()> {
    golden("check", checked)
}
