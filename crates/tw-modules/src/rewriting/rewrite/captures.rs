//! Escaping of what a regular expression has captured.

use tw_http::escape::Escape;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Escaping of captures.
///
/// The path was decoded before it was matched. Where it becomes a part of arguments or of a redirect it has to be escaped
/// again; as in nginx this is done only if the request came with an escape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Captures {
    Plain,
    Escaped,
}

impl Captures {
    /// Escaping of captures of `r` in arguments and redirects.
    pub(super) fn in_args(r: &Request) -> Self {
        let path = r.head.target();
        let path = path.iter().take_while(|b| **b != b'?');
        if r.head.path_is_quoted() || path.into_iter().any(|b| *b == b'+') {
            Self::Escaped
        } else {
            Self::Plain
        }
    }

    /// Appends the text of `template`.
    pub(super) fn eval(self, template: &Template, r: &Request, out: &mut Vec<u8>) {
        match self {
            Self::Plain => template.eval(r, out),
            Self::Escaped => template.eval_captures(r, out, |text, out| Escape::Args.push(text, out)),
        }
    }
}
