//! Every directive that can stand in a configuration, by name: what mistakes are explained by, and looked for with.

use std::cell::OnceCell;
use std::collections::HashMap;

use tw_conf::{Args, ConfError, Contexts, DirectiveInfo, Guess, Node, record};

/// The record of a block that gives the configuration its structure, for documents and checks.
pub const fn block(
    name: &'static str,
    syntax: &'static str,
    contexts: Contexts,
    args: Args,
) -> DirectiveInfo {
    record::new(name, syntax, contexts, args.block())
}

/// Collects records of directives, which only the explanation of a mistake needs.
pub type CollectDirectives = Box<dyn Fn() -> Vec<DirectiveInfo>>;

/// Records of directives, of all protocols.
pub(super) struct KnownDirectives {
    collect: CollectDirectives,
    by_name: OnceCell<HashMap<&'static str, Vec<DirectiveInfo>>>,
    sorted: OnceCell<Vec<DirectiveInfo>>,
}

impl KnownDirectives {
    /// The records that `collect` returns, once there is a mistake: collecting them takes as long as loading a small
    /// configuration. Of two records with one name, the first describes the directive where it is not allowed.
    pub(super) fn new(collect: CollectDirectives) -> Self {
        Self { collect, by_name: OnceCell::new(), sorted: OnceCell::new() }
    }

    fn by_name(&self) -> &HashMap<&'static str, Vec<DirectiveInfo>> {
        self.by_name.get_or_init(|| {
            let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
            for info in (self.collect)() {
                by_name.entry(info.name).or_default().push(info);
            }
            by_name
        })
    }

    fn of(&self, name: &str) -> &[DirectiveInfo] {
        self.by_name().get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// A record of this name, wherever it may stand.
    pub(super) fn record(&self, name: &str) -> Option<&DirectiveInfo> {
        self.of(name).first()
    }

    /// Returns true if a record allows the directive here.
    pub(super) fn has(&self, node: &Node, context: Contexts) -> bool {
        let name = node.name.as_str().unwrap_or_default();
        self.of(name).iter().any(|info| info.contexts & context != 0)
    }

    /// Every record, by name. Only mistakes need it.
    pub(super) fn all(&self) -> &[DirectiveInfo] {
        self.sorted.get_or_init(|| {
            let mut all: Vec<_> = self.by_name().values().flatten().copied().collect();
            // Sorted, so that among names that are equally near to a misspelt one the first is always suggested.
            all.sort_by_key(|info| info.name);
            all
        })
    }

    /// The error for a directive that no record here describes.
    pub(super) fn unknown(&self, node: &Node, context: Contexts, guess: Guess) -> ConfError {
        tw_conf::reject(node, context, self.all(), guess)
    }
}
