//! Directives, variables and modules that nginx has, so that a missing one is reported as such.

mod definable;
mod foreign;
mod modules;
mod table;
mod variables;

use crate::context::{Contexts, STREAM, STREAM_SERVER, STREAM_UPSTREAM, context_words_from, family};
use crate::directive::{DirectiveInfo, allowed_in};
use crate::error::{ConfError, MissingFeature};
use crate::suggest::{Guess, nearest, nearest_with_distance};
use crate::tree::Node;

pub use definable::NginxVariables;
pub(crate) use foreign::hint_for_module;
pub use modules::{is_built_in, missing_module, module_of_file};

/// A directive of nginx, whether or not we have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NginxDirective {
    /// Name of the directive.
    pub name: &'static str,
    /// Module of nginx that has it.
    pub module: &'static str,
    /// Contexts in which nginx allows it.
    pub contexts: Contexts,
}

/// All directives of nginx, by module; a name occurs once for each module that has it.
pub fn nginx_directives() -> impl Iterator<Item = NginxDirective> + Clone {
    table::TABLE.iter().flat_map(|&(module, contexts, names)| {
        names.split_ascii_whitespace().map(move |name| NginxDirective { name, module, contexts })
    })
}

/// The variables of nginx that requests have, by module. A name that ends with `_` is the beginning of a family.
pub fn known_variables() -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
    let rows = variables::VARIABLES.iter().filter(|(module, _)| !module.starts_with("ngx_stream_"));
    rows.flat_map(|&(module, names)| names.split_ascii_whitespace().map(move |name| (name, module)))
}

/// Error for a variable that no module here defines; `name` is in lower case and without its `$`. `None` if nginx has
/// no such variable either.
pub fn missing_variable(name: &str) -> Option<ConfError> {
    let is = |candidate: &str| candidate == name || (candidate.ends_with('_') && name.starts_with(candidate));
    let (_, module) = known_variables().find(|(candidate, _)| is(candidate))?;
    let message = format!("variable \"${name}\" ({module}) is not supported by this version of Tailwater");
    Some(ConfError::new(message).missing(MissingFeature::new(format!("${name}"), module)))
}

/// Module of nginx that has a directive in this context.
pub fn module_of(name: &str, context: Contexts) -> Option<&'static str> {
    let mut theirs =
        nginx_directives().filter(|directive| directive.name == name && directive.contexts & context != 0);
    theirs.next().map(|directive| directive.module)
}

/// All contexts of `stream`.
const STREAMS: Contexts = STREAM | STREAM_SERVER | STREAM_UPSTREAM;

/// Error for a directive that no record allows in `context`; `supported` holds the records of all modules.
///
/// The messages are nginx's, except for directives that only nginx has. The search for a suggestion compares all
/// names, which takes a third of a millisecond.
pub fn reject(node: &Node, context: Contexts, supported: &[DirectiveInfo], guess: Guess) -> ConfError {
    let name = node.name.lossy();
    let misplaced = |contexts| {
        node.error("is not allowed here").at(node.name.span).hint(allowed_in(&name, context, contexts))
    };
    let ours = supported.iter().filter(|info| info.name == name);
    let ours = ours.fold(0, |contexts, info| contexts | info.contexts);
    // A directive of http may be one of nginx's in `stream`, too.
    let is_theirs_here = context & STREAMS != 0 && module_of(&name, context).is_some();
    if ours & context == 0 && ours != 0 && !is_theirs_here {
        return misplaced(ours);
    }

    if let Some(module) = module_of(&name, context) {
        let error = missing_directive(node, module);
        return match twin(&name, context, supported) {
            Some(twin) => error.hint(format!("the nearest supported directive is \"{twin}\"")),
            None => error,
        };
    }
    let theirs = nginx_directives().filter(|directive| directive.name == name);
    let theirs = theirs.fold(0, |contexts, directive| contexts | directive.contexts);
    if theirs != 0 {
        return misplaced(theirs);
    }

    let error = ConfError::new(format!("unknown directive \"{name}\"")).at(node.name.span);
    if node.name.bytes.starts_with(b"\xef\xbb\xbf") {
        return error.hint("the file begins with a UTF-8 byte order mark; save it without one");
    }
    if let Some(hint) = foreign::hint_for(&name) {
        return error.hint(hint);
    }
    if name.starts_with("if(") {
        return error.hint("a blank is missing between \"if\" and \"(\"");
    }
    match guess {
        Guess::Nearest => match meant(&name, context, supported) {
            Some(meant) => error.hint(meant),
            None => error,
        },
        Guess::None => error,
    }
}

/// Error for a directive that nginx has in a module and Tailwater lacks.
pub fn missing_directive(node: &Node, module: &'static str) -> ConfError {
    let name = node.name.lossy();
    let message = format!("directive \"{name}\" ({module}) is not supported by this version of Tailwater");
    let error = ConfError::new(message).at(node.name.span);
    let error = match hint_for_module(module).or_else(|| foreign::hint_for(&name)) {
        Some(hint) => error.hint(hint),
        None => error,
    };
    error.missing(MissingFeature::new(name.into_owned(), module))
}

/// Suggestion for an unknown name: a directive for this context, one of another context of the protocol, one that nginx has here, or one
/// that stands anywhere. Of the first two, the nearer one is meant.
fn meant(name: &str, context: Contexts, supported: &[DirectiveInfo]) -> Option<String> {
    let name = name.to_ascii_lowercase();
    let nearest_in = |contexts: Contexts| {
        let those = supported.iter().filter(|info| info.contexts & contexts != 0);
        nearest_with_distance(&name, those.map(|info| info.name))
    };
    let places = |meant: &str| {
        let contexts = supported.iter().filter(|info| info.name == meant);
        let contexts = contexts.fold(0, |contexts, info| contexts | info.contexts);
        format!("did you mean \"{meant}\"? It is allowed in: {}", context_words_from(context, contexts))
    };
    match (nearest_in(context), nearest_in(family(context))) {
        (Some((_, meant)), None) => return Some(format!("did you mean \"{meant}\"?")),
        (Some((here, meant)), Some((elsewhere, _))) if here <= elsewhere => {
            return Some(format!("did you mean \"{meant}\"?"));
        }
        (_, Some((_, meant))) => return Some(places(meant)),
        (None, None) => {}
    }
    let theirs = nginx_directives().filter(|directive| directive.contexts & context != 0);
    if let Some(meant) = nearest(&name, theirs.map(|directive| directive.name)) {
        return Some(format!("did you mean \"{meant}\"? This version of Tailwater does not support it"));
    }
    nearest(&name, supported.iter().map(|info| info.name)).map(places)
}

/// The supported directive of another gateway that does the same: `proxy_cache` for `scgi_cache`.
fn twin(name: &str, context: Contexts, supported: &[DirectiveInfo]) -> Option<&'static str> {
    const PASS_PREFIXES: [&str; 6] = ["proxy_", "fastcgi_", "uwsgi_", "scgi_", "grpc_", "memcached_"];
    let suffix = PASS_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let mut here = supported.iter().filter(|info| info.contexts & context != 0);
    here.find(|info| PASS_PREFIXES.iter().any(|prefix| info.name.strip_prefix(prefix) == Some(suffix)))
        .map(|info| info.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::*;
    use crate::{Args, MemoryFiles, Reader, Tree, record};

    #[test]
    fn table_is_complete() {
        assert_eq!(nginx_directives().count(), 998);
        let find = |name| -> Vec<_> {
            nginx_directives()
                .filter(|directive| directive.name == name)
                .map(|directive| (directive.module, directive.contexts))
                .collect()
        };
        assert_eq!(
            find("proxy_pass"),
            [
                ("ngx_http_proxy_module", LOCATION | IF_IN_LOCATION | LIMIT_EXCEPT),
                ("ngx_stream_proxy_module", STREAM_SERVER),
            ]
        );
        assert_eq!(find("user"), [("ngx_core_module", MAIN)]);
        for directive in nginx_directives() {
            assert_ne!(directive.contexts, 0, "{}", directive.name);
        }
    }

    #[test]
    fn variables_of_nginx() {
        for (name, expected) in [
            ("upstream_addr", Some("ngx_http_upstream_module")),
            ("upstream_http_x_y", Some("ngx_http_upstream_module")),
            ("ssl_preread_server_name", None),
            ("hostt", None),
        ] {
            let missing = missing_variable(name).and_then(|error| error.missing);
            assert_eq!(
                missing,
                expected.map(|module| MissingFeature::new(format!("${name}"), module)),
                "{name}"
            );
        }
        assert_eq!(known_variables().count(), 174);
        let error = missing_variable("slice_range").unwrap();
        let expected =
            "variable \"$slice_range\" (ngx_http_slice_module) is not supported by this version of Tailwater";
        assert_eq!(error.message, expected);
    }

    #[test]
    fn rejections() {
        let supported = [
            record::new("listen", "address", SERVER, Args::exact(1)),
            record::new("root", "path", HTTP | SERVER | LOCATION, Args::exact(1)),
            record::new("proxy_cache", "zone", HTTP | SERVER | LOCATION, Args::exact(1)),
            record::new("worker_name", "name", MAIN, Args::exact(1)),
            record::new("status_zone", "name", LOCATION, Args::exact(1)),
            record::new("status_zone", "name", STREAM_SERVER, Args::exact(1)),
        ];
        let table = [
            (
                "listen 80;",
                HTTP,
                "\"listen\" directive is not allowed here",
                "\"listen\" is allowed in: server",
            ),
            ("lisen 80;", SERVER, "unknown directive \"lisen\"", "did you mean \"listen\"?"),
            (
                "lisen 80;",
                MAIN,
                "unknown directive \"lisen\"",
                "did you mean \"listen\"? It is allowed in: server",
            ),
            (
                "proxy_pas a;",
                LOCATION,
                "unknown directive \"proxy_pas\"",
                "did you mean \"proxy_pass\"? This version of Tailwater does not support it",
            ),
            ("frobnicate a;", HTTP, "unknown directive \"frobnicate\"", ""),
            (
                "statu_zone a;",
                SERVER,
                "unknown directive \"statu_zone\"",
                "did you mean \"status_zone\"? It is allowed in: location",
            ),
            (
                "statu_zone a;",
                STREAM,
                "unknown directive \"statu_zone\"",
                "did you mean \"status_zone\"? It is allowed in: server",
            ),
            (
                "scgi_cache a;",
                SERVER,
                "directive \"scgi_cache\" (ngx_http_scgi_module) is not supported by this version of Tailwater",
                "the nearest supported directive is \"proxy_cache\"",
            ),
            (
                "autoindex on;",
                SERVER,
                "directive \"autoindex\" (ngx_http_autoindex_module) is not supported by this version of Tailwater",
                "",
            ),
            (
                "proxy_timeout 1;",
                HTTP,
                "\"proxy_timeout\" directive is not allowed here",
                "\"proxy_timeout\" is allowed in: stream, server in stream, mail, server in mail",
            ),
            (
                "worker_name a;",
                HTTP,
                "\"worker_name\" directive is not allowed here",
                "\"worker_name\" is allowed in: main",
            ),
            (
                "if($a = b) { }",
                SERVER,
                "unknown directive \"if($a\"",
                "a blank is missing between \"if\" and \"(\"",
            ),
            (
                "pagespeed on;",
                SERVER,
                "unknown directive \"pagespeed\"",
                "pages are not rewritten; \"gzip\", \"brotli\" and \"zstd\" compress them",
            ),
            (
                "js_preload_object a from b;",
                SERVER,
                "directive \"js_preload_object\" (ngx_http_js_module) is not supported by this version of Tailwater",
                "scripts run by \"js_content\", \"js_access\", \"js_set\" and filters: docs/scripting.md has all directives",
            ),
            ("ROOT a;", HTTP, "unknown directive \"ROOT\"", "did you mean \"root\"?"),
            (
                "\u{feff}root a;",
                HTTP,
                "unknown directive \"\u{feff}root\"",
                "the file begins with a UTF-8 byte order mark; save it without one",
            ),
        ];
        for (text, context, message, hint) in table {
            let mut tree = Tree::default();
            Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
            let error = reject(&tree.nodes[0], context, &supported, Guess::Nearest);
            assert_eq!(
                (error.message.as_str(), error.hint.as_deref().unwrap_or("")),
                (message, hint),
                "{text}"
            );
        }
    }
}
