//! One block's settings as written, and the table that says which module a directive belongs to.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use tw_conf::{
    Args, ConfError, Contexts, DirectiveInfo, EVENTS, HTTP, IF_IN_LOCATION, IF_IN_SERVER, LIMIT_EXCEPT,
    LOCATION, Level, MAIN, Node, SERVER, Span, UPSTREAM, record,
};
use tw_http::Method;

use super::{Loader, Module, Seen};
use crate::http::Http;
use crate::http::plan::MethodSet;
use crate::http::route::Pattern;
use tw_core::config_thread::step_back;
use tw_core::load::{Raws, Record};
use tw_core::process as main;
use tw_core::regex::Caseless;

/// Settings as written of one block and of the blocks in it.
pub(super) struct Scope {
    pub(super) raws: Raws,
    pub(super) kind: Kind,
    pub(super) children: Vec<Scope>,
    pub(super) span: Option<Span>,
}

/// What a block is.
pub(super) enum Kind {
    Http,
    Server,
    Location(Pattern),
    /// `if`, whose condition the rewrite module has.
    If,
    LimitExcept(MethodSet),
}

impl Kind {
    /// The context of what is written in a block of this kind that stands in `outer`.
    fn context(&self, outer: u32) -> u32 {
        match self {
            Self::Http => HTTP,
            Self::Server => SERVER,
            Self::Location(_) => LOCATION,
            Self::If if outer == SERVER => IF_IN_SERVER,
            Self::If => IF_IN_LOCATION,
            Self::LimitExcept(_) => LIMIT_EXCEPT,
        }
    }
}

/// Which module a directive belongs to.
pub(super) struct Table {
    main: HashMap<&'static str, (usize, DirectiveInfo)>,
    pub(super) http: tw_core::load::Table<Http>,
    all: OnceCell<Vec<DirectiveInfo>>,
}

/// The blocks that give the configuration its structure, as records for documents and checks.
static STRUCTURE: [DirectiveInfo; 6] = [
    block("events", "{ … }", MAIN, Args::NONE).doc("Settings of how connections are accepted and processed."),
    block("http", "{ … }", MAIN, Args::NONE).doc("The HTTP servers."),
    block("server", "{ … }", HTTP, Args::NONE).doc("A virtual server."),
    block("location", "[ = | ~ | ~* | ^~ ] uri { … } | @name { … }", SERVER | LOCATION, Args::range(1, 2))
        .doc("Settings of the requests whose URI matches."),
    block("if", "(condition) { … }", SERVER | LOCATION, Args::at_least(1))
        .doc("What is in it holds for requests for which the condition is true."),
    block("limit_except", "method … { … }", LOCATION, Args::at_least(1))
        .since("0.8.15")
        .doc("What is in it holds for requests with other methods than these; GET includes HEAD."),
];

const fn block(name: &'static str, syntax: &'static str, contexts: u32, args: Args) -> DirectiveInfo {
    record::new(name, syntax, contexts, args.block())
}

/// Records of the structural blocks.
pub fn directives() -> impl Iterator<Item = DirectiveInfo> {
    STRUCTURE.iter().copied()
}

impl Table {
    pub(super) fn new(modules: Vec<&'static Module>) -> Self {
        let main = main::DIRECTIVES.iter().enumerate().map(|(at, d)| (d.name, (at, d.info()))).collect();
        Self { main, http: tw_core::load::Table::new(modules), all: OnceCell::new() }
    }

    /// Every record, by name. Only mistakes need it.
    fn all(&self) -> &[DirectiveInfo] {
        self.all.get_or_init(|| {
            let main = self.main.values().map(|(_, info)| *info);
            let mut all: Vec<_> = main.chain(self.http.infos()).chain(directives()).collect();
            // Of two names that are equally near to a misspelt one the first is meant: always the same one.
            all.sort_by_key(|info| info.name);
            all
        })
    }

    /// A record of this name, wherever it may stand.
    fn record(&self, name: &str) -> Option<DirectiveInfo> {
        let main = self.main.get(name).map(|(_, info)| *info);
        let http = || self.http.find(name, HTTP).map(|record| record.info);
        main.or_else(http).or_else(|| directives().find(|info| info.name == name))
    }

    /// Whether a record allows the directive here.
    fn has(&self, node: &Node, context: u32) -> bool {
        let Some(name) = node.name.as_str() else { return false };
        let http = self.http.find(name, context).map(|record| record.info);
        let infos = [self.main.get(name).map(|(_, info)| *info), http];
        let mut infos = infos.into_iter().flatten().chain(directives().filter(|info| info.name == name));
        infos.any(|info| info.contexts & context != 0)
    }

    /// The error for a directive that no record here describes.
    fn unknown(&self, node: &Node, context: u32) -> ConfError {
        tw_conf::reject(node, context, self.all())
    }
}

impl Loader<'_> {
    pub(super) fn walk_main(&mut self, nodes: &[Node]) {
        for node in nodes {
            if self.mistakes.are_enough() {
                break;
            }
            let done = match node.name.as_str() {
                Some("events") => self.walk_events(node),
                Some("http") => self.walk_http(node),
                Some("load_module") => self.load_module(node),
                _ => self.set_main(node, MAIN),
            };
            self.go_on_after(node, MAIN, done);
        }
    }

    fn walk_events(&mut self, node: &Node) -> Result<(), ConfError> {
        check_structure(node, MAIN)?;
        if std::mem::replace(&mut self.events, Seen::Yes) == Seen::Yes {
            return Err(node.error("is duplicate"));
        }
        for inner in node.children()? {
            if self.mistakes.are_enough() {
                break;
            }
            let done = self.set_main(inner, EVENTS);
            self.go_on_after(inner, EVENTS, done);
        }
        Ok(())
    }

    fn set_main(&mut self, node: &Node, context: u32) -> Result<(), ConfError> {
        let name = node.name.as_str().unwrap_or_default();
        let Some((index, info)) = self.table.main.get(name).copied() else {
            return Err(self.table.unknown(node, context));
        };
        tw_conf::check(node, &info, context)?;
        let mut raw = std::mem::take(&mut self.main);
        let done = main::set(index, &mut raw, node, &mut self.cx(context));
        self.main = raw;
        done
    }

    // DIFF(nginx): no code is loaded.
    /// Everything is built in: there is nothing to load, but something to say.
    fn load_module(&mut self, node: &Node) -> Result<(), ConfError> {
        self.set_main(node, MAIN)?;
        let file = node.arg(0)?;
        let module = tw_conf::module_of_file(file);
        if !tw_conf::is_built_in(&module, self.table.all()) {
            return Err(tw_conf::missing_module(node, file));
        }
        let message = format!("module \"{module}\" is built in, \"load_module\" has no effect");
        self.diagnostics.push(ConfError { level: Level::Notice, ..node.fail(message) });
        Ok(())
    }

    fn walk_http(&mut self, node: &Node) -> Result<(), ConfError> {
        check_structure(node, MAIN)?;
        if self.http.is_some() {
            return Err(node.error("is duplicate"));
        }
        let scope = self.walk_scope(node, MAIN, Kind::Http)?;
        self.http = Some(scope);
        Ok(())
    }

    /// Reads `block`, which stands in the context `outer`, and goes on after mistakes in it.
    fn walk_scope(&mut self, block: &Node, outer: u32, kind: Kind) -> Result<Scope, ConfError> {
        let context = kind.context(outer);
        let mut scope = Scope { raws: Raws::default(), kind, children: Vec::new(), span: Some(block.span) };
        let mut seen = Siblings::default();
        for node in block.children()? {
            step_back();
            if self.mistakes.are_enough() {
                break;
            }
            let done = self.walk_node(&mut scope, &mut seen, node, context);
            self.go_on_after(node, context, done);
        }
        Ok(scope)
    }

    /// Reads what stands in a block. An error means that nothing of it was taken in.
    fn walk_node(
        &mut self,
        scope: &mut Scope,
        seen: &mut Siblings,
        node: &Node,
        context: u32,
    ) -> Result<(), ConfError> {
        let kind = match node.name.as_str() {
            Some("server") => {
                check_structure(node, context)?;
                Kind::Server
            }
            Some("location") => {
                check_structure(node, context)?;
                let pattern = self.pattern(node, &scope.kind)?;
                seen.add(&pattern, node)?;
                Kind::Location(pattern)
            }
            Some("if") => {
                check_structure(node, context)?;
                Kind::If
            }
            Some("limit_except") => {
                check_structure(node, context)?;
                if scope.children.iter().any(|child| matches!(child.kind, Kind::LimitExcept(_))) {
                    return Err(node.error("is duplicate"));
                }
                Kind::LimitExcept(methods(node)?)
            }
            _ => return self.set_http(scope, node, context),
        };
        let mut child = self.walk_scope(node, context, kind)?;
        if matches!(child.kind, Kind::If) {
            for at in 0..self.table.http.modules().len() {
                let module = self.table.http.modules()[at];
                if module.takes_ifs() {
                    let (raw, inner) = (scope.raws.of(at), child.raws.of(at));
                    if let Err(error) = module.take_if(raw, inner, node, &mut self.cx(context)) {
                        // What is in it has been looked at.
                        self.mistakes.add(self.advised(error, node));
                        return Ok(());
                    }
                }
            }
            if context == SERVER {
                // Nothing may stand in it but what has just been taken.
                return Ok(());
            }
        }
        scope.children.push(child);
        Ok(())
    }

    fn set_http(&mut self, scope: &mut Scope, node: &Node, context: u32) -> Result<(), ConfError> {
        let name = node.name.as_str().unwrap_or_default();
        let Some(Record { module, index, info }) = self.table.http.find(name, context) else {
            return Err(self.table.unknown(node, context));
        };
        tw_conf::check(node, &info, context)?;
        let found = self.table.http.modules()[module];
        found.set(index, scope.raws.of(module), node, &mut self.cx(context))
    }

    /// Keeps the mistake of a directive, and looks through its block for what is missing in there.
    fn go_on_after(&mut self, node: &Node, context: u32, done: Result<(), ConfError>) {
        let Err(error) = done else { return };
        let module = error.missing.as_ref().and_then(|_| tw_conf::module_of(&node.name.lossy(), context));
        if module.is_some() {
            self.use_variables(node, context);
        }
        self.mistakes.add(self.advised(error, node));
        self.survey(node, context, module);
    }

    /// Looks through the block of a directive that was not taken in. Of the directives that only nginx has, those of
    /// `module` go with that directive and need no mention.
    fn survey(&mut self, block: &Node, context: u32, module: Option<&'static str>) {
        let Some(inside) = tw_conf::inside(&block.name.lossy(), context) else { return };
        for node in block.block.iter().flatten() {
            step_back();
            if self.mistakes.are_enough() {
                break;
            }
            if self.table.has(node, inside) {
                self.survey(node, inside, None);
                continue;
            }
            let theirs = tw_conf::module_of(&node.name.lossy(), inside);
            match theirs {
                Some(theirs) => {
                    self.use_variables(node, inside);
                    if Some(theirs) != module {
                        self.mistakes.add(tw_conf::missing_directive(node, theirs));
                    }
                }
                // In a block that nobody here knows, nobody can say that something is wrong.
                None if module.is_some() => {}
                None => self.mistakes.add(self.advised(self.table.unknown(node, inside), node)),
            }
            self.survey(node, inside, theirs);
        }
    }

    /// Remembers the variables of a directive that is not read. Those of other protocols have the same names and are others.
    fn use_variables(&mut self, node: &Node, context: Contexts) {
        const OURS: Contexts =
            HTTP | SERVER | LOCATION | IF_IN_SERVER | IF_IN_LOCATION | LIMIT_EXCEPT | UPSTREAM;
        if context & OURS != 0 {
            self.mistakes.use_variables(node);
        }
    }

    /// An error about a directive with what its words show.
    fn advised(&self, error: ConfError, node: &Node) -> ConfError {
        let opens = self.table.record(&node.name.lossy()).is_some_and(|info| info.args.has_block());
        let begins = |name: &str| {
            self.table.record(name).is_some() || tw_conf::known().any(|known| known.name == name)
        };
        tw_conf::advise(error, node, opens, self.sources, begins)
    }

    /// Reads how a location is written, inside `outer`.
    fn pattern(&mut self, node: &Node, outer: &Kind) -> Result<Pattern, ConfError> {
        let first = node.arg(0)?;
        let (modifier, uri): (&[u8], &[u8]) = match node.args.get(1) {
            Some(uri) => (&first.bytes, &uri.bytes),
            None => split_modifier(&first.bytes),
        };
        let shown = String::from_utf8_lossy(uri).into_owned();
        let pattern = match modifier {
            b"=" => Pattern::Exact(uri.into()),
            b"^~" => Pattern::Prefix { uri: uri.into(), no_regex: true },
            b"" => match uri {
                [b'@', ..] => Pattern::Named(uri.into()),
                _ => Pattern::Prefix { uri: uri.into(), no_regex: false },
            },
            b"~" | b"~*" => {
                let caseless = if modifier == b"~*" { Caseless::Yes } else { Caseless::No };
                let regex = self
                    .regexes
                    .compile(uri, caseless)
                    .map_err(|e| node.fail(format!("regex compilation failed: {e} in \"{shown}\"")))?;
                for (_, name) in regex.names() {
                    self.vars.capture(name).map_err(|error| node.fail(error.message))?;
                }
                Pattern::Regex(regex)
            }
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(node.fail(format!("invalid location modifier \"{other}\"")));
            }
        };
        let Kind::Location(outer) = outer else { return Ok(pattern) };
        let outer_uri = match outer {
            Pattern::Exact(uri) => {
                let uri = String::from_utf8_lossy(uri);
                return Err(
                    node.fail(format!("location \"{shown}\" cannot be inside the exact location \"{uri}\""))
                );
            }
            Pattern::Named(uri) => {
                let uri = String::from_utf8_lossy(uri);
                return Err(
                    node.fail(format!("location \"{shown}\" cannot be inside the named location \"{uri}\""))
                );
            }
            Pattern::Prefix { uri, .. } => uri,
            // As in nginx, where only other regular expressions have a meaning in one.
            Pattern::Regex(regex) => regex.pattern().as_bytes(),
        };
        match (&pattern, outer_uri) {
            (Pattern::Named(_), _) => {
                Err(node.fail(format!("named location \"{shown}\" can be on the server level only")))
            }
            (Pattern::Exact(uri) | Pattern::Prefix { uri, .. }, outer) if !uri.starts_with(outer) => {
                let outer = String::from_utf8_lossy(outer);
                Err(node.fail(format!("location \"{shown}\" is outside location \"{outer}\"")))
            }
            _ => Ok(pattern),
        }
    }
}

/// `=/uri`, `^~/uri`, `~re`, `~*re` written without a space.
fn split_modifier(word: &[u8]) -> (&[u8], &[u8]) {
    let len = match word {
        [b'^', b'~', ..] | [b'~', b'*', ..] => 2,
        [b'=' | b'~', ..] => 1,
        _ => 0,
    };
    word.split_at(len)
}

/// Locations of one block, to find those that are written twice.
#[derive(Default)]
struct Siblings {
    exact: HashSet<Box<[u8]>>,
    prefix: HashSet<Box<[u8]>>,
}

impl Siblings {
    fn add(&mut self, pattern: &Pattern, node: &Node) -> Result<(), ConfError> {
        let is_new = match pattern {
            Pattern::Exact(uri) => self.exact.insert(uri.clone()),
            Pattern::Prefix { uri, .. } => self.prefix.insert(uri.clone()),
            Pattern::Named(_) | Pattern::Regex(_) => true,
        };
        match (is_new, node.args.last()) {
            (false, Some(uri)) => Err(node.fail(format!("duplicate location \"{uri}\""))),
            _ => Ok(()),
        }
    }
}

/// The methods of `limit_except`.
fn methods(node: &Node) -> Result<MethodSet, ConfError> {
    let mut set = MethodSet::default();
    for word in &node.args {
        match Method::of(&word.bytes.to_ascii_uppercase()) {
            Method::Other | Method::Trace | Method::Connect => {
                return Err(node.fail(format!("invalid method \"{word}\"")));
            }
            method => set.add(method),
        }
    }
    if set.has(Method::Get) {
        set.add(Method::Head);
    }
    Ok(set)
}

fn check_structure(node: &Node, context: u32) -> Result<(), ConfError> {
    let name = node.name.as_str().unwrap_or_default();
    match directives().find(|info| info.name == name) {
        Some(info) => tw_conf::check(node, &info, context),
        None => Ok(()),
    }
}
