//! One block's settings as written, and the table that says which module a directive belongs to.

use std::collections::HashMap;

use tw_conf::{Args, ConfError, DirectiveInfo, EVENTS, HTTP, LOCATION, MAIN, Node, SERVER, Span};

use super::{Loader, Seen};
use crate::core::main;
use crate::http::route::Pattern;
use crate::module::{Module, RawBox};
use crate::regex::{Caseless, Regex};

/// Settings as written of one block and of the blocks in it.
pub(super) struct Scope {
    pub(super) raws: Vec<RawBox>,
    pub(super) pattern: Option<Pattern>,
    pub(super) children: Vec<Scope>,
    pub(super) span: Option<Span>,
}

/// Which module a directive belongs to.
pub(super) struct Table {
    modules: Vec<&'static Module>,
    main: HashMap<&'static str, (usize, DirectiveInfo)>,
    http: HashMap<&'static str, (usize, usize, DirectiveInfo)>,
}

/// The blocks that give the configuration its structure, as records for documents and checks.
static STRUCTURE: [(&str, &str, u32, Args); 4] = [
    ("events", "{ … }", MAIN, Args::NONE.block()),
    ("http", "{ … }", MAIN, Args::NONE.block()),
    ("server", "{ … }", HTTP, Args::NONE.block()),
    ("location", "[ = | ~ | ~* | ^~ ] uri { … } | @name { … }", SERVER | LOCATION, Args::range(1, 2).block()),
];

/// Records of the structural blocks.
pub fn directives() -> impl Iterator<Item = DirectiveInfo> {
    STRUCTURE.iter().map(|&(name, syntax, contexts, args)| DirectiveInfo {
        name,
        syntax,
        contexts,
        args,
        default: None,
        since: "",
        doc: "A block of the configuration.",
    })
}

impl Table {
    pub(super) fn new(modules: Vec<&'static Module>) -> Self {
        let main = main::DIRECTIVES.iter().enumerate().map(|(at, d)| (d.name, (at, d.info()))).collect();
        let mut http = HashMap::new();
        for (module, m) in modules.iter().enumerate() {
            for (at, info) in m.directives().into_iter().enumerate() {
                http.insert(info.name, (module, at, info));
            }
        }
        Self { modules, main, http }
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = &'static Module> + '_ {
        self.modules.iter().copied()
    }

    fn raws(&self) -> Vec<RawBox> {
        self.modules.iter().map(|m| m.raw()).collect()
    }

    /// The error for a directive that no record here describes.
    fn unknown(&self, node: &Node, context: u32) -> ConfError {
        let all = self.main.values().map(|(_, info)| *info);
        let all = all.chain(self.http.values().map(|(_, _, info)| *info)).chain(directives());
        tw_conf::reject(node, context, &all.collect::<Vec<_>>())
    }
}

impl Loader<'_> {
    pub(super) fn walk_main(&mut self, nodes: &[Node]) -> Result<(), ConfError> {
        for node in nodes {
            match node.name.as_str() {
                Some("events") => self.walk_events(node)?,
                Some("http") => self.walk_http(node)?,
                _ => self.set_main(node, MAIN)?,
            }
        }
        Ok(())
    }

    fn walk_events(&mut self, node: &Node) -> Result<(), ConfError> {
        check_structure(node, MAIN)?;
        if std::mem::replace(&mut self.events, Seen::Yes) == Seen::Yes {
            return Err(node.error("is duplicate"));
        }
        for inner in node.children()? {
            self.set_main(inner, EVENTS)?;
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

    fn walk_http(&mut self, node: &Node) -> Result<(), ConfError> {
        check_structure(node, MAIN)?;
        if self.http.is_some() {
            return Err(node.error("is duplicate"));
        }
        let scope = self.walk_scope(node, HTTP, None)?;
        self.http = Some(scope);
        Ok(())
    }

    fn walk_scope(
        &mut self,
        block: &Node,
        context: u32,
        pattern: Option<Pattern>,
    ) -> Result<Scope, ConfError> {
        let mut scope =
            Scope { raws: self.table.raws(), pattern, children: Vec::new(), span: Some(block.span) };
        for node in block.children()? {
            match node.name.as_str() {
                Some("server") => {
                    check_structure(node, context)?;
                    let server = self.walk_scope(node, SERVER, None)?;
                    scope.children.push(server);
                }
                Some("location") => {
                    check_structure(node, context)?;
                    let pattern = self.pattern(node, scope.pattern.as_ref())?;
                    refuse_duplicate(&scope.children, &pattern, node)?;
                    let location = self.walk_scope(node, LOCATION, Some(pattern))?;
                    scope.children.push(location);
                }
                _ => self.set_http(&mut scope, node, context)?,
            }
        }
        Ok(scope)
    }

    fn set_http(&mut self, scope: &mut Scope, node: &Node, context: u32) -> Result<(), ConfError> {
        let name = node.name.as_str().unwrap_or_default();
        let Some((module, index, info)) = self.table.http.get(name).copied() else {
            return Err(self.table.unknown(node, context));
        };
        tw_conf::check(node, &info, context)?;
        let module_ref = self.table.modules[module];
        module_ref.set(index, &mut scope.raws[module], node, &mut self.cx(context))
    }

    /// Reads how a location is written, inside `outer`.
    fn pattern(&mut self, node: &Node, outer: Option<&Pattern>) -> Result<Pattern, ConfError> {
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
                let regex = Regex::new(uri, caseless)
                    .map_err(|e| node.fail(format!("regex compilation failed: {e} in \"{shown}\"")))?;
                for (_, name) in regex.names() {
                    self.vars.capture(name).map_err(|error| node.fail(error.message))?;
                }
                Pattern::Regex(regex.into())
            }
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(node.fail(format!("invalid location modifier \"{other}\"")));
            }
        };
        let Some(outer) = outer else { return Ok(pattern) };
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

fn refuse_duplicate(siblings: &[Scope], pattern: &Pattern, node: &Node) -> Result<(), ConfError> {
    let duplicate = siblings.iter().any(|other| match (&other.pattern, pattern) {
        (Some(Pattern::Exact(a)), Pattern::Exact(b)) => a == b,
        (Some(Pattern::Prefix { uri: a, .. }), Pattern::Prefix { uri: b, .. }) => a == b,
        _ => false,
    });
    match (duplicate, node.args.last()) {
        (true, Some(uri)) => Err(node.fail(format!("duplicate location \"{uri}\""))),
        _ => Ok(()),
    }
}

fn check_structure(node: &Node, context: u32) -> Result<(), ConfError> {
    let name = node.name.as_str().unwrap_or_default();
    match directives().find(|info| info.name == name) {
        Some(info) => tw_conf::check(node, &info, context),
        None => Ok(()),
    }
}
