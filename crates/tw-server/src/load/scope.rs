//! The blocks of `http` as written: servers, locations and what stands in them.

use std::sync::Arc;

use foldhash::HashSet;
use tw_conf::{
    Args, ConfError, DirectiveInfo, HTTP, IF_IN_LOCATION, IF_IN_SERVER, LIMIT_EXCEPT, LOCATION, MAIN, Node,
    SERVER, UPSTREAM,
};
use tw_connect::upstream_block::read_name;
use tw_core::load::{IfBlock, Loader, block};
use tw_core::regex::Caseless;
use tw_http::Method;

use super::HttpBlocks;
use tw_request::plan::MethodSet;
use tw_request::route::Pattern;

/// Settings as written of one block and of the blocks in it.
pub(super) type BlockScope = tw_core::load::BlockScope<BlockKind>;

/// Kind of a block.
pub(super) enum BlockKind {
    Http,
    Server,
    Location(Pattern),
    /// `if`, whose condition the rewrite module has.
    If,
    LimitExcept(MethodSet),
    /// `upstream`, with its name.
    Upstream(Arc<str>),
}

impl BlockKind {
    /// The context of what is written in a block of this kind that stands in `outer`.
    fn context(&self, outer: u32) -> u32 {
        match self {
            Self::Http => HTTP,
            Self::Server => SERVER,
            Self::Location(_) => LOCATION,
            Self::If if outer == SERVER => IF_IN_SERVER,
            Self::If => IF_IN_LOCATION,
            Self::LimitExcept(_) => LIMIT_EXCEPT,
            Self::Upstream(_) => UPSTREAM,
        }
    }

    /// Name of an `upstream`.
    fn upstream(&self) -> Option<&str> {
        match self {
            Self::Upstream(name) => Some(name),
            _ => None,
        }
    }
}

/// The blocks that give `http` its structure, as records for documents and checks.
pub(super) const STRUCTURE: &[DirectiveInfo] = &[
    block("http", "{ … }", MAIN, Args::NONE).doc("The HTTP servers."),
    block("server", "{ … }", HTTP, Args::NONE).doc("A virtual server."),
    block("upstream", "name { … }", HTTP, Args::exact(1))
        .doc("A group of servers that requests are passed to."),
    block(
        "location",
        "[ = | ~ | ~* | ^~ ] uri { … } | $variable { … } | @name { … }",
        SERVER | LOCATION,
        Args::range(1, 2),
    )
    .doc("Settings of the requests whose URI matches, or for which the variable is neither empty nor 0."),
    block("if", "(condition) { … }", SERVER | LOCATION, Args::at_least(1))
        .doc("Directives for requests for which the condition is true."),
    block("limit_except", "method … { … }", LOCATION, Args::at_least(1))
        .since("0.8.15")
        .doc("Directives for requests with other methods than these; GET includes HEAD."),
];

/// Records of the structural blocks.
pub fn directives() -> impl Iterator<Item = DirectiveInfo> {
    tw_core::load::structure_directives(STRUCTURE)
}

impl HttpBlocks {
    pub(super) fn walk_http(&mut self, node: &Node, loader: &mut Loader<'_>) -> Result<(), ConfError> {
        loader.check_protocol_block(node, self.http.as_ref())?;
        self.http = Some(self.walk_scope(node, MAIN, BlockKind::Http, loader)?);
        Ok(())
    }

    /// Reads `block`, which stands in the context `outer`.
    fn walk_scope(
        &mut self,
        block: &Node,
        outer: u32,
        kind: BlockKind,
        loader: &mut Loader<'_>,
    ) -> Result<BlockScope, ConfError> {
        let context = kind.context(outer);
        let mut siblings = Siblings::default();
        loader.walk_scope(block, context, kind, |loader, scope, node| {
            self.walk_node(scope, &mut siblings, node, context, loader)
        })
    }

    /// Reads what stands in a block. An error means that nothing of it was taken in.
    fn walk_node(
        &mut self,
        scope: &mut BlockScope,
        siblings: &mut Siblings,
        node: &Node,
        context: u32,
        loader: &mut Loader<'_>,
    ) -> Result<(), ConfError> {
        let kind = match node.name.as_str() {
            Some("server") if context != UPSTREAM => {
                loader.check_block(node, context)?;
                BlockKind::Server
            }
            Some("upstream") => {
                let known_names = scope.children.iter().filter_map(|child| child.kind.upstream());
                BlockKind::Upstream(read_name(node, context, known_names, loader)?)
            }
            Some("location") => {
                loader.check_block(node, context)?;
                let pattern = self.pattern(node, &scope.kind, loader)?;
                siblings.add(&pattern, node)?;
                BlockKind::Location(pattern)
            }
            Some("if") => {
                loader.check_block(node, context)?;
                BlockKind::If
            }
            Some("limit_except") => {
                loader.check_block(node, context)?;
                if scope.children.iter().any(|child| matches!(child.kind, BlockKind::LimitExcept(_))) {
                    return Err(node.error("is duplicate"));
                }
                BlockKind::LimitExcept(methods(node)?)
            }
            _ => return loader.set(&self.table, &mut scope.raws, node, context),
        };
        let mut child = self.walk_scope(node, context, kind, loader)?;
        if matches!(child.kind, BlockKind::If) {
            let outcome = loader.take_if(&self.table, &mut scope.raws, &mut child.raws, node, context);
            // An `if` in a server may contain only the directives that `take_if` has just taken.
            if outcome == IfBlock::Rejected || context == SERVER {
                return Ok(());
            }
        }
        scope.children.push(child);
        Ok(())
    }

    /// Reads how a location is written, inside `outer`.
    fn pattern(
        &mut self,
        node: &Node,
        outer: &BlockKind,
        loader: &mut Loader<'_>,
    ) -> Result<Pattern, ConfError> {
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
                b"$" => return Err(node.fail("invalid variable name \"$\"")),
                [b'$', ..] => Pattern::Predicate(uri.into()),
                _ => Pattern::Prefix { uri: uri.into(), no_regex: false },
            },
            b"~" | b"~*" => {
                let caseless = if modifier == b"~*" { Caseless::Yes } else { Caseless::No };
                let regex = loader
                    .regexes
                    .compile(uri, caseless)
                    .map_err(|e| node.fail(format!("regex compilation failed: {e} in \"{shown}\"")))?;
                for (_, name) in regex.names() {
                    self.vars.capture(name, node.span).map_err(|error| node.fail(error.message))?;
                }
                Pattern::Regex(regex)
            }
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(node.fail(format!("invalid location modifier \"{other}\"")));
            }
        };
        let BlockKind::Location(outer) = outer else { return Ok(pattern) };
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
            // As in nginx, a location with a regular expression may contain only other regular expressions and
            // predicates.
            Pattern::Regex(regex) => regex.pattern().as_bytes(),
            Pattern::Predicate(_) => b"",
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
            Pattern::Named(_) | Pattern::Regex(_) | Pattern::Predicate(_) => true,
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
