//! Record of a directive: the only place that has its name, contexts, arguments and meaning.
//!
//! One record feeds the parser, the checks, the documentation and the tests of defaults. Lists of records are
//! constants:
//!
//! ```
//! use tw_conf::*;
//!
//! #[derive(Default)]
//! struct Raw {
//!     on: Setting<bool>,
//!     depth: Setting<usize>,
//! }
//!
//! const DIRECTIVES: &[Directive<Raw>] = &[
//!     record::flag("listing", HTTP | SERVER | LOCATION)
//!         .default("off")
//!         .doc("Lists directories.")
//!         .set(|raw, node, _| raw.on.set_flag(node)),
//!     record::new("listing_depth", "number [lines]", LOCATION, Args::range(1, 2))
//!         .default("1")
//!         .doc("How deep, and how many lines at most.")
//!         .set(|raw, node, _| raw.depth.set_number(node)),
//! ];
//! # assert_eq!(DIRECTIVES[0].syntax, "on | off");
//! ```

use crate::context::{Contexts, context_words_from};
use crate::error::{ConfError, Diagnostics};
use crate::span::{Sources, Span};
use crate::tree::Node;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Function that stores a directive in the settings of its block.
pub type Setter<R> = fn(&mut R, &Node, &mut Cx<'_>) -> Result<(), ConfError>;

/// All there is to know about a directive whose module keeps `R` per block; [`record`] begins one.
pub struct Directive<R: 'static> {
    /// Name of the directive.
    pub name: &'static str,
    /// Arguments as the documentation shows them, without the name and the `;`.
    pub syntax: &'static str,
    /// Contexts in which it may stand.
    pub contexts: Contexts,
    /// Number of arguments, and whether a block follows.
    pub args: Args,
    /// Default, as it would be written in the configuration.
    pub default: Option<&'static str>,
    /// The first version that has it; empty for the first version of all.
    pub since: &'static str,
    /// Documentation in whole sentences.
    pub doc: &'static str,
    /// Stores it. The node has passed [`check`].
    pub set: Setter<R>,
}

/// A [`Directive`] without its setter: what lists of all modules' directives hold.
#[derive(Clone, Copy, Debug)]
pub struct DirectiveInfo {
    /// Name of the directive.
    pub name: &'static str,
    /// Arguments as the documentation shows them.
    pub syntax: &'static str,
    /// Contexts in which it may stand.
    pub contexts: Contexts,
    /// Number of arguments, and whether a block follows.
    pub args: Args,
    /// Default, as it would be written in the configuration.
    pub default: Option<&'static str>,
    /// The first version that has it.
    pub since: &'static str,
    /// Documentation in whole sentences.
    pub doc: &'static str,
}

impl<R> Directive<R> {
    /// The record without its setter.
    pub const fn info(&self) -> DirectiveInfo {
        let Self { name, syntax, contexts, args, default, since, doc, set: _ } = *self;
        DirectiveInfo { name, syntax, contexts, args, default, since, doc }
    }
}

impl DirectiveInfo {
    /// Adds the default.
    pub const fn default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// Adds the first version that has the directive.
    pub const fn since(mut self, since: &'static str) -> Self {
        self.since = since;
        self
    }

    /// Adds the documentation.
    pub const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Syntax line for hints: `syntax: root path;`.
    pub fn usage(&self) -> String {
        let end = if self.args.has_block() { "" } else { ";" };
        let gap = if self.syntax.is_empty() { "" } else { " " };
        format!("syntax: {}{gap}{}{end}", self.name, self.syntax)
    }

    /// Completes the record. It comes last, so that the type of the settings is known from the list.
    pub const fn set<R>(self, set: Setter<R>) -> Directive<R> {
        let Self { name, syntax, contexts, args, default, since, doc } = self;
        Directive { name, syntax, contexts, args, default, since, doc, set }
    }
}

/// Constructors of records: name, contexts and arguments.
pub mod record {
    use std::marker::PhantomData;

    use tw_base::PrefixedName;

    use super::{Args, Contexts, Directive, DirectiveInfo};

    /// A directive of any kind.
    pub const fn new(
        name: &'static str,
        syntax: &'static str,
        contexts: Contexts,
        args: Args,
    ) -> DirectiveInfo {
        DirectiveInfo { name, syntax, contexts, args, default: None, since: "", doc: "" }
    }

    /// Number of records in `lists`.
    pub const fn count<R>(lists: &[&[Directive<R>]]) -> usize {
        let mut at = 0;
        let mut count = 0;
        while at < lists.len() {
            count += lists[at].len();
            at += 1;
        }
        count
    }

    /// The `N` records of `lists` as one list; `N` is their [`count`].
    pub const fn joined<R: 'static, const N: usize>(lists: &[&[Directive<R>]]) -> [Directive<R>; N] {
        let mut joined = [Empty::<R>::RECORD; N];
        let mut list = 0;
        let mut at = 0;
        let mut to = 0;
        while list < lists.len() {
            if at == lists[list].len() {
                (list, at) = (list + 1, 0);
                continue;
            }
            let record = &lists[list][at];
            joined[to] = record.info().set(record.set);
            (at, to) = (at + 1, to + 1);
        }
        joined
    }

    /// Names of the records of `lists` with a prefix, for [`with_names`]; `N` is the [`count`] of the records.
    pub const fn names<R: 'static, const N: usize>(
        prefix: &str,
        lists: &[&[Directive<R>]],
    ) -> [PrefixedName; N] {
        let records = joined::<R, N>(lists);
        let mut names = [PrefixedName::EMPTY; N];
        let mut at = 0;
        while at < N {
            names[at] = PrefixedName::new(prefix, records[at].name);
            at += 1;
        }
        names
    }

    /// The records of `lists` as one list, with these names: modules whose directives differ in a prefix share the records.
    pub const fn with_names<R: 'static, const N: usize>(
        lists: &[&[Directive<R>]],
        names: &'static [PrefixedName; N],
    ) -> [Directive<R>; N] {
        let mut records = joined::<R, N>(lists);
        let mut at = 0;
        while at < N {
            records[at].name = names[at].as_str();
            at += 1;
        }
        records
    }

    /// The `N` records of `lists`, without setters, as one list; `N` is their number.
    pub const fn joined_infos<const N: usize>(lists: &[&[DirectiveInfo]]) -> [DirectiveInfo; N] {
        let mut joined = [new("", "", 0, Args::NONE); N];
        let mut list = 0;
        let mut at = 0;
        let mut to = 0;
        while list < lists.len() {
            if at == lists[list].len() {
                (list, at) = (list + 1, 0);
                continue;
            }
            joined[to] = lists[list][at];
            (at, to) = (at + 1, to + 1);
        }
        joined
    }

    /// Placeholder for the items of a list before its records are copied.
    struct Empty<R>(PhantomData<R>);

    impl<R: 'static> Empty<R> {
        const RECORD: Directive<R> = new("", "", 0, Args::NONE).set(|_, _, _| Ok(()));
    }

    /// A directive that takes `on` or `off`.
    pub const fn flag(name: &'static str, contexts: Contexts) -> DirectiveInfo {
        new(name, "on | off", contexts, Args::FLAG)
    }

    /// A directive that takes one size.
    pub const fn size(name: &'static str, contexts: Contexts) -> DirectiveInfo {
        new(name, "size", contexts, Args::exact(1))
    }

    /// A directive that takes one time.
    pub const fn time(name: &'static str, contexts: Contexts) -> DirectiveInfo {
        new(name, "time", contexts, Args::exact(1))
    }

    /// A directive that takes one number.
    pub const fn number(name: &'static str, contexts: Contexts) -> DirectiveInfo {
        new(name, "number", contexts, Args::exact(1))
    }

    /// A directive that takes how many buffers and their size.
    pub const fn buffers(name: &'static str, contexts: Contexts) -> DirectiveInfo {
        new(name, "number size", contexts, Args::exact(2))
    }
}

/// Numbers of arguments that a directive takes, and whether a block follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Bit `n` is set if `n` arguments are allowed; the highest bit covers every larger number too.
    counts: u32,
    block: bool,
}

impl Args {
    /// No arguments.
    pub const NONE: Args = Args::exact(0);
    /// One argument, `on` or `off`.
    pub const FLAG: Args = Args::exact(1);
    /// Any number of arguments, none included.
    pub const ANY: Args = Args::at_least(0);

    /// Exactly `count` arguments, at most 30.
    pub const fn exact(count: u32) -> Args {
        Args::range(count, count)
    }

    /// From `min` to `max` arguments, at most 30.
    pub const fn range(min: u32, max: u32) -> Args {
        assert!(min <= max && max < u32::BITS - 1);
        Args { counts: (u32::MAX << min) & !(u32::MAX << (max + 1)), block: false }
    }

    /// `min` arguments or more.
    pub const fn at_least(min: u32) -> Args {
        assert!(min < u32::BITS - 1);
        Args { counts: u32::MAX << min, block: false }
    }

    /// Allows `count` arguments as well.
    pub const fn or(mut self, count: u32) -> Args {
        self.counts |= Args::exact(count).counts;
        self
    }

    /// Requires a block instead of `;` after the arguments.
    pub const fn block(mut self) -> Args {
        self.block = true;
        self
    }

    /// Returns `true` if this number of arguments is allowed.
    pub const fn allows(self, count: usize) -> bool {
        let bit = if count < u32::BITS as usize - 1 { count as u32 } else { u32::BITS - 1 };
        self.counts & (1 << bit) != 0
    }

    /// Returns `true` if a block follows.
    pub const fn has_block(self) -> bool {
        self.block
    }
}

/// Context of a setter, besides its settings and its node.
pub struct Cx<'a> {
    /// The texts of the configuration.
    pub sources: &'a Sources,
    /// Receiver of warnings.
    pub diagnostics: &'a mut Diagnostics,
    /// The directory of relative names (`-p`).
    pub prefix: &'a [u8],
    /// The directory of the main configuration file, of which certificates, `include` and such are relative.
    pub conf_prefix: &'a [u8],
    /// Context of the directive.
    pub context: Contexts,
}

impl Cx<'_> {
    /// Keeps a warning about a place.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.diagnostics.warn(span, message);
    }

    /// A name relative to the prefix: logs, roots, temporary files.
    pub fn full_path(&self, name: &[u8]) -> PathBuf {
        OsString::from_vec(full_name(self.prefix, name)).into()
    }

    /// A name relative to the main configuration file: certificates, password files.
    pub fn conf_path(&self, name: &[u8]) -> PathBuf {
        OsString::from_vec(full_name(self.conf_prefix, name)).into()
    }
}

/// `name` if it begins with `/`, else `prefix/name`; nothing is normalised.
pub fn full_name(prefix: &[u8], name: &[u8]) -> Vec<u8> {
    if name.starts_with(b"/") {
        return name.to_vec();
    }
    let mut full = prefix.to_vec();
    if !full.is_empty() && !full.ends_with(b"/") {
        full.push(b'/');
    }
    full.extend_from_slice(name);
    full
}

/// Judges a directive by its record, in nginx's order: place, end, number of arguments.
///
/// # Errors
/// `"NAME" directive is not allowed here`, `directive "NAME" is not terminated by ";"`,
/// `directive "NAME" has no opening "{"`, `invalid number of arguments in "NAME" directive`.
pub fn check(node: &Node, info: &DirectiveInfo, context: Contexts) -> Result<(), ConfError> {
    if info.contexts & context == 0 {
        return Err(node.error("is not allowed here").hint(allowed_in(info.name, context, info.contexts)));
    }
    match (info.args.has_block(), &node.block) {
        (false, Some(_)) => {
            let error = node.fail(format!("directive \"{}\" is not terminated by \";\"", node.name));
            return Err(error.hint(info.usage()));
        }
        (true, None) => return Err(node.no_block().hint(info.usage())),
        (false, None) | (true, Some(_)) => {}
    }
    if info.args.allows(node.args.len()) { Ok(()) } else { Err(node.invalid_count().hint(info.usage())) }
}

/// Contexts of a directive that stands in `here`, as a hint.
pub(crate) fn allowed_in(name: &str, here: Contexts, contexts: Contexts) -> String {
    format!("\"{name}\" is allowed in: {}", context_words_from(here, contexts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HTTP, MAIN, MemoryFiles, Reader, SERVER, Tree};

    #[test]
    fn counts_of_arguments() {
        // Whether 0, 1, 2, 3, 30 and 1000 arguments are allowed.
        let table = [
            (Args::NONE, [true, false, false, false, false, false]),
            (Args::FLAG, [false, true, false, false, false, false]),
            (Args::exact(2), [false, false, true, false, false, false]),
            (Args::exact(30), [false, false, false, false, true, false]),
            (Args::range(1, 3), [false, true, true, true, false, false]),
            (Args::exact(1).or(3), [false, true, false, true, false, false]),
            (Args::at_least(2), [false, false, true, true, true, true]),
            (Args::ANY, [true; 6]),
        ];
        for (args, expected) in table {
            assert_eq!([0, 1, 2, 3, 30, 1000].map(|count| args.allows(count)), expected, "{args:?}");
            assert!(!args.has_block() && args.block().has_block());
        }
    }

    #[test]
    fn checks_in_the_order_of_nginx() {
        let flag = record::flag("a", HTTP | SERVER);
        let block = record::new("a", "name { … }", MAIN, Args::exact(1).block());
        let table = [
            ("a on;", flag, HTTP, None),
            ("a on;", flag, MAIN, Some("\"a\" directive is not allowed here")),
            ("a { }", flag, MAIN, Some("\"a\" directive is not allowed here")),
            ("a { }", flag, SERVER, Some("directive \"a\" is not terminated by \";\"")),
            ("a;", flag, SERVER, Some("invalid number of arguments in \"a\" directive")),
            ("a on off;", flag, SERVER, Some("invalid number of arguments in \"a\" directive")),
            ("a b { }", block, MAIN, None),
            ("a;", block, MAIN, Some("directive \"a\" has no opening \"{\"")),
            ("a { }", block, MAIN, Some("invalid number of arguments in \"a\" directive")),
        ];
        for (text, info, context, expected) in table {
            let mut tree = Tree::default();
            Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
            let message = check(&tree.nodes[0], &info, context).err().map(|error| error.message);
            assert_eq!(message.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn names_relative_to_a_prefix() {
        let table = [
            ("/p/", "a", "/p/a"),
            ("/p", "a", "/p/a"),
            ("/p/", "/a", "/a"),
            ("/p/", "../a", "/p/../a"),
            ("/p/", "", "/p/"),
            ("", "a", "a"),
        ];
        for (prefix, name, expected) in table {
            let full = full_name(prefix.as_bytes(), name.as_bytes());
            assert_eq!(String::from_utf8_lossy(&full), expected, "{prefix} {name}");
        }
    }
}
