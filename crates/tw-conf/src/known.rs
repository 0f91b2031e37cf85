//! Directives that nginx knows, so that a directive we do not have is named for what it is.

mod table;

use crate::context::{Contexts, context_words};
use crate::directive::DirectiveInfo;
use crate::error::ConfError;
use crate::suggest::nearest;
use crate::tree::Node;

/// A directive of nginx, whether or not we have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// The module of nginx it belongs to.
    pub module: &'static str,
    /// Where nginx allows it.
    pub contexts: Contexts,
}

/// All directives of nginx, by module; a name stands once for each module that has it.
pub fn known() -> impl Iterator<Item = Known> + Clone {
    table::TABLE.iter().flat_map(|&(module, contexts, names)| {
        names.split_ascii_whitespace().map(move |name| Known { name, module, contexts })
    })
}

/// What to say about a directive for which no record allows `context`; `supported` holds the records of all modules.
///
/// The messages are nginx's, but for a directive that only nginx has.
pub fn reject(node: &Node, context: Contexts, supported: &[DirectiveInfo]) -> ConfError {
    let name = node.name.lossy();
    let misplaced = |contexts| {
        let hint = format!("\"{name}\" is allowed in: {}", context_words(contexts));
        node.error("is not allowed here").at(node.name.span).hint(hint)
    };
    let ours = supported.iter().filter(|info| info.name == name);
    let ours = ours.fold(0, |contexts, info| contexts | info.contexts);
    if ours & context == 0 && ours != 0 {
        return misplaced(ours);
    }

    let theirs = known().filter(|known| known.name == name);
    if let Some(known) = theirs.clone().find(|known| known.contexts & context != 0) {
        let message =
            format!("directive \"{name}\" ({}) is not supported by this version of Tailwater", known.module);
        let error = ConfError::new(message).at(node.name.span);
        return match twin(&name, context, supported) {
            Some(twin) => error.hint(format!("the nearest supported directive is \"{twin}\"")),
            None => error,
        };
    }
    let theirs = theirs.fold(0, |contexts, known| contexts | known.contexts);
    if theirs != 0 {
        return misplaced(theirs);
    }

    let error = ConfError::new(format!("unknown directive \"{name}\"")).at(node.name.span);
    if node.name.bytes.starts_with(b"\xef\xbb\xbf") {
        return error.hint("the file begins with a UTF-8 byte order mark; save it without one");
    }
    let here = supported.iter().filter(|info| info.contexts & context != 0);
    match nearest(&name, here.map(|info| info.name)) {
        Some(meant) => error.hint(format!("did you mean \"{meant}\"?")),
        None => error,
    }
}

/// The supported directive of another gateway that does the same: `proxy_cache` for `scgi_cache`.
fn twin(name: &str, context: Contexts, supported: &[DirectiveInfo]) -> Option<&'static str> {
    const GATEWAYS: [&str; 6] = ["proxy_", "fastcgi_", "uwsgi_", "scgi_", "grpc_", "memcached_"];
    let suffix = GATEWAYS.iter().find_map(|gateway| name.strip_prefix(gateway))?;
    let mut here = supported.iter().filter(|info| info.contexts & context != 0);
    here.find(|info| GATEWAYS.iter().any(|gateway| info.name.strip_prefix(gateway) == Some(suffix)))
        .map(|info| info.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::*;
    use crate::{Args, MemoryFiles, Reader, Tree, record};

    #[test]
    fn table_is_complete() {
        assert_eq!(known().count(), 996);
        let find = |name| -> Vec<_> {
            known().filter(|known| known.name == name).map(|known| (known.module, known.contexts)).collect()
        };
        assert_eq!(
            find("proxy_pass"),
            [
                ("ngx_http_proxy_module", LOCATION | IF_IN_LOCATION | LIMIT_EXCEPT),
                ("ngx_stream_proxy_module", STREAM_SERVER),
            ]
        );
        assert_eq!(find("user"), [("ngx_core_module", MAIN)]);
        for known in known() {
            assert_ne!(known.contexts, 0, "{}", known.name);
        }
    }

    #[test]
    fn rejections() {
        let supported = [
            record::new("listen", "address", SERVER, Args::exact(1)),
            record::new("root", "path", HTTP | SERVER | LOCATION, Args::exact(1)),
            record::new("proxy_cache", "zone", HTTP | SERVER | LOCATION, Args::exact(1)),
            record::new("worker_name", "name", MAIN, Args::exact(1)),
        ];
        let table = [
            (
                "listen 80;",
                HTTP,
                "\"listen\" directive is not allowed here",
                "\"listen\" is allowed in: server",
            ),
            ("lisen 80;", SERVER, "unknown directive \"lisen\"", "did you mean \"listen\"?"),
            ("lisen 80;", MAIN, "unknown directive \"lisen\"", ""),
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
                "\"proxy_timeout\" is allowed in: stream, server, mail",
            ),
            (
                "worker_name a;",
                HTTP,
                "\"worker_name\" directive is not allowed here",
                "\"worker_name\" is allowed in: main",
            ),
            ("ROOT a;", HTTP, "unknown directive \"ROOT\"", ""),
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
            let error = reject(&tree.nodes[0], context, &supported);
            assert_eq!(
                (error.message.as_str(), error.hint.as_deref().unwrap_or("")),
                (message, hint),
                "{text}"
            );
        }
    }
}
