//! The replacement of a `rewrite`: a URI and arguments, or a redirect.

use tw_conf::ConfError;
use tw_http::escape::{Unescape, unescape};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

use super::captures::Captures;
use super::raw::{AfterMatch, OriginalArgs, RewriteDirective};

/// Replacement of a URI that matches.
pub(super) struct Replacement {
    text: Text,
    original_args: OriginalArgs,
    then: AfterMatch,
}

/// The replacement as text.
enum Text {
    /// A path, and arguments if there is a `?` in it.
    Uri(Template, Option<Template>),
    /// A URL, or a path for the client.
    Redirect(Template, HasArgs),
}

/// Presence of a `?` in a redirect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HasArgs {
    Yes,
    No,
}

impl Replacement {
    pub(super) fn compile(rewrite: &RewriteDirective, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let RewriteDirective { replacement, original_args, then, .. } = rewrite;
        let question = replacement.bytes.iter().position(|b| *b == b'?');
        let text = match (then, question) {
            (AfterMatch::Redirect(_), question) => {
                let has_args = if question.is_some() { HasArgs::Yes } else { HasArgs::No };
                Text::Redirect(cx.template(replacement)?, has_args)
            }
            (_, Some(at)) => {
                let path = &replacement.bytes[..at];
                let args = &replacement.bytes[at + 1..];
                let path = cx.template_text(path, Some(replacement.span))?;
                Text::Uri(path, Some(cx.template_text(args, Some(replacement.span))?))
            }
            (_, None) => Text::Uri(cx.template(replacement)?, None),
        };
        Ok(Self { text, original_args: *original_args, then: *then })
    }

    /// Continuation after the replacement.
    pub(super) fn then(&self) -> AfterMatch {
        self.then
    }

    /// Replaces the URI of `r`, or makes a redirect. `scratch` is memory for it; its content is lost.
    pub(super) fn apply(&self, r: &mut Request, scratch: &mut Vec<u8>) {
        scratch.clear();
        let keeps = self.original_args == OriginalArgs::Kept && !r.uri.args.is_empty();
        match &self.text {
            Text::Redirect(url, has_args) => {
                Captures::in_args(r).eval(url, r, scratch);
                let mut location = Vec::with_capacity(scratch.len());
                unescape(scratch, Unescape::Redirect, &mut location);
                if keeps {
                    location.push(if *has_args == HasArgs::Yes { b'&' } else { b'?' });
                    location.extend_from_slice(&r.uri.args);
                }
                r.response.location = location.into();
            }
            Text::Uri(path, args) => {
                let new_args = args.as_ref().map(|args| {
                    let mut text = Vec::new();
                    Captures::in_args(r).eval(args, r, &mut text);
                    text
                });
                path.eval(r, scratch);
                std::mem::swap(&mut r.uri.path, scratch);
                match new_args {
                    Some(mut text) => {
                        if keeps {
                            text.push(b'&');
                            text.extend_from_slice(&r.uri.args);
                        }
                        r.uri.args = text;
                    }
                    None if self.original_args == OriginalArgs::Dropped => r.uri.args.clear(),
                    None => {}
                }
            }
        }
    }
}
