//! Directory of the files of a location: `root` and `alias`.

use std::marker::PhantomData;

use tw_conf::{Args, ConfError, Directive, LOCATION, MachineSubject, Node, Setting, Span, Word, record};

use super::contexts::ALL_IF;
use crate::protocol::Resolve;
use crate::route::Pattern;
use crate::vars::Template;

/// Directory of the files of a location.
#[derive(Clone)]
pub struct Root {
    /// The directory (or file, with `alias`).
    pub path: Template,
    /// Rule for adding the URI.
    pub kind: RootKind,
    /// Position in the configuration; `None` if there is no directive.
    pub at: Option<Span>,
}

/// Rule for making a path of a root and a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKind {
    /// `root`: the URI is added.
    Root,
    /// `alias` in a prefix location: the URI without so many first bytes is added.
    Alias(usize),
    /// `alias` in a regular expression: the path is complete.
    Whole,
}

/// `root` or `alias` as written.
#[derive(Default)]
pub(super) struct Raw {
    root: Setting<(Word, bool)>,
}

/// Records of the directives, for the settings as written `R` of a location.
pub(super) struct Records<R>(PhantomData<R>);

impl<R: AsMut<Raw> + 'static> Records<R> {
    pub(super) const ALL: &'static [Directive<R>] = &[
        record::new("root", "path", ALL_IF, Args::exact(1))
            .default("html")
            .doc("Directory that the URI is added to.")
            .set(|raw, node, _| set_root(raw.as_mut(), node, false)),
        record::new("alias", "path", LOCATION, Args::exact(1))
            .doc("Replaces the part of the URI that the location matched.")
            .set(|raw, node, _| set_root(raw.as_mut(), node, true)),
    ];
}

impl Root {
    pub(super) fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        match (raw.root.take(), outer) {
            (Some((word, alias)), _) => resolve_root(&word, alias, cx),
            (None, Some(outer)) => Ok(outer.clone()),
            (None, None) => {
                Ok(Self { path: Template::text(&cx.full_path(b"html")), kind: RootKind::Root, at: None })
            }
        }
    }
}

fn set_root(raw: &mut Raw, node: &Node, alias: bool) -> Result<(), ConfError> {
    if let Some((_, earlier_alias)) = raw.root.get() {
        let earlier = if *earlier_alias { "alias" } else { "root" };
        return Err(if *earlier_alias == alias {
            node.error("is duplicate")
        } else {
            node.fail(format!(
                "\"{}\" directive is duplicate, \"{earlier}\" directive was specified earlier",
                node.name
            ))
        });
    }
    let word = node.arg(0)?.clone();
    for forbidden in ["$document_root", "${document_root}", "$realpath_root", "${realpath_root}"] {
        if word.bytes.windows(forbidden.len()).any(|w| w == forbidden.as_bytes()) {
            let name = forbidden.trim_matches(['$', '{', '}']);
            return Err(
                node.fail(format!("the ${name} variable cannot be used in the \"{}\" directive", node.name))
            );
        }
    }
    raw.root.set_once(node, (word, alias))
}

fn resolve_root(word: &Word, alias: bool, cx: &mut Resolve<'_>) -> Result<Root, ConfError> {
    let kind = match (alias, cx.block.location()) {
        (false, _) => RootKind::Root,
        (true, Some(Pattern::Exact(uri))) => RootKind::Alias(uri.len()),
        (true, Some(Pattern::Prefix { uri, .. })) => RootKind::Alias(uri.len()),
        (true, Some(Pattern::Named(_))) => {
            return Err(ConfError::new("the \"alias\" directive cannot be used inside the named location")
                .at(word.span));
        }
        (true, _) => RootKind::Whole,
    };
    if let (true, Some(Pattern::Prefix { uri, .. })) = (alias, cx.block.location())
        && !uri.ends_with(b"/")
        && word.bytes.ends_with(b"/")
    {
        let uri = String::from_utf8_lossy(uri).into_owned();
        let message = format!(
            "location \"{uri}\" ends without a slash and its \"alias\" with one: \"{uri}../\" leaves the directory"
        );
        let warning = ConfError::warn(message).at(word.span);
        cx.report(warning.hint(format!("both with a slash at the end: location {uri}/")));
    }
    let mut text = word.bytes.to_vec();
    if kind == RootKind::Root && text.len() > 1 && text.ends_with(b"/") {
        text.pop();
    }
    let full = if text.starts_with(b"$") { text } else { cx.full_path(&text) };
    let path = cx.template_text(&full, Some(word.span))?;
    if let Some(path) = path.constant() {
        let name = if alias { "alias" } else { "root" };
        cx.expect(MachineSubject::Path(path.into()), || {
            let path = String::from_utf8_lossy(path);
            ConfError::warn(format!("\"{name}\" names \"{path}\", which does not exist")).at(word.span)
        });
    }
    Ok(Root { path, kind, at: Some(word.span) })
}
