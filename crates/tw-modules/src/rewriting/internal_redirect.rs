//! `internal_redirect`: another location answers, after limits and access rules (nginx: ngx_http_internal_redirect_module of its
//! commercial edition). Precontent phase.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_http::target;
use tw_log::{Level, Text};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;

/// `internal_redirect` as written.
#[derive(Default)]
pub(crate) struct Raw {
    uri: Setting<Word>,
}

/// The redirect of one block, or of the enclosing one.
pub(crate) struct InternalRedirect {
    uri: Option<Template>,
}

impl Settings<Http> for InternalRedirect {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("internal_redirect", "uri", SERVER | LOCATION, Args::exact(1))
            .since("1.23.4")
            .doc("Redirects requests internally to a URI or a named location once limits and access rules have let them in; an empty value does nothing.")
            .set(|raw, node, _| raw.uri.set_once(node, node.arg(0)?.clone()))];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let uri = match raw.uri.take() {
            Some(word) => {
                cx.block.use_named_location(&word.bytes, word.span);
                Some(cx.template(&word)?)
            }
            None => outer.and_then(|outer| outer.uri.clone()),
        };
        Ok(Self { uri })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.uri.is_some() {
            plan.add(Phase::Precontent, self.clone());
        }
    }
}

impl Handler for InternalRedirect {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let uri = self.uri.as_ref().map(|uri| uri.value(r)).unwrap_or_default();
        match uri.first() {
            None => Step::PASS,
            Some(b'@') => Step::Now(Outcome::Named(uri.into())),
            Some(_) => {
                let (path, args) = target::split_args(&uri);
                // A variable may have brought the dots.
                if !path.starts_with(b"/") || target::leads_up(path) {
                    r.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", Text(&uri)));
                    return Step::status(500);
                }
                Step::Now(Outcome::Redirect { path: path.to_vec(), args: args.to_vec() })
            }
        }
    }
}
