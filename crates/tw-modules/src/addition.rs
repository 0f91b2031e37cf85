//! `add_before_body`, `add_after_body`: responses of other locations around a body (nginx:
//! ngx_http_addition_filter_module). Header filter.
//!
//! The additions are complete when they come: they stand behind the filters that change the text of a body, and before
//! those that encode it.

use std::io;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_log::{Level, Text};
use tw_server::http::Http;
use tw_server::http::body::{Body, Pull};
use tw_server::http::plan::{HeaderFilter, LocalFuture, Plan};
use tw_server::http::request::{Request, Uri};
use tw_server::http::subrequest::{ParentBody, Subrequest};
use tw_server::load::Resolve;

use crate::altered::{forget_length, refuse_ranges};
use crate::ssi;
use crate::types::{self, RawTypes, Types};

const ALL: u32 = HTTP | SERVER | LOCATION;
const TYPES: &[&str] = &["text/html"];

/// Additions as written.
#[derive(Default)]
pub(crate) struct Raw {
    before: Setting<Arc<[u8]>>,
    after: Setting<Arc<[u8]>>,
    types: RawTypes,
}

/// Additions of one location.
pub(crate) struct Addition {
    around: Around,
    types: Types,
}

/// What comes before and after a body: URIs, empty for nothing.
#[derive(Clone)]
struct Around {
    before: Arc<[u8]>,
    after: Arc<[u8]>,
}

impl Settings<Http> for Addition {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("add_before_body", "uri", ALL, Args::exact(1))
            .doc("The response of this URI comes before the body.")
            .set(|raw, node, _| raw.before.set_with(node, uri)),
        record::new("add_after_body", "uri", ALL, Args::exact(1))
            .doc("The response of this URI comes after the body.")
            .set(|raw, node, _| raw.after.set_with(node, uri)),
        record::new("addition_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .since("0.7.9")
            .doc("Media types besides text/html of responses that get additions; `*` is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self {
            around: Around {
                before: raw.before.or_else(|| outer.map(|o| o.around.before.clone()), || [].into()),
                after: raw.after.or_else(|| outer.map(|o| o.around.after.clone()), || [].into()),
            },
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.around.before.is_empty() || !self.around.after.is_empty() {
            plan.add_header_filter(self.clone());
        }
    }
}

fn uri(node: &Node) -> Result<Arc<[u8]>, ConfError> {
    Ok((*node.arg(0)?.bytes).into())
}

impl HeaderFilter for Addition {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        if r.out.status != 200 || r.is_subrequest() || !self.types.contain(&r.out) {
            return body;
        }
        forget_length(r);
        refuse_ranges(r);
        r.out.weaken_etag();
        ssi::share(r);
        let around = self.around.clone();
        Body::Pull(Box::new(Surrounded { around, body, addition: None, next: Next::Before }))
    }
}

/// A body with additions.
struct Surrounded {
    around: Around,
    body: Body,
    /// The one that is being sent.
    addition: Option<Subrequest>,
    next: Next,
}

/// What comes when the addition that is being sent has ended.
enum Next {
    Before,
    Body,
    End,
}

impl Pull for Surrounded {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            loop {
                if let Some(addition) = &mut self.addition {
                    match addition.next(want, r).await? {
                        Some(piece) => return Ok(Some(piece)),
                        None => self.addition = None,
                    }
                }
                match self.next {
                    Next::Before => {
                        let addition = begin(&self.around.before, r).await;
                        // From here on, so that whoever drops the future and asks again gets the addition.
                        self.next = Next::Body;
                        self.addition = addition?;
                    }
                    Next::Body => {
                        if let Some(piece) = self.body.next(want, r).await? {
                            return Ok(Some(piece));
                        }
                        let addition = begin(&self.around.after, r).await;
                        self.next = Next::End;
                        self.addition = addition?;
                    }
                    Next::End => return Ok(None),
                }
            }
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.body.holds_head()
    }
}

/// Asks for an addition. The error ends the response, as in nginx.
async fn begin(uri: &[u8], r: &mut Request) -> io::Result<Option<Subrequest>> {
    if uri.is_empty() {
        return Ok(None);
    }
    let to = Uri { path: uri.to_vec(), args: Vec::new() };
    match Subrequest::run(r, to, ParentBody::Visible).await {
        Ok(addition) => Ok(Some(addition)),
        Err(refused) => {
            r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(uri)));
            Err(io::Error::other("the response is incomplete"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that comes when it likes.
    struct Slow;

    impl Pull for Slow {
        fn next<'a>(
            &'a mut self,
            _: usize,
            _: &'a mut Request,
        ) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
            Box::pin(std::future::pending())
        }

        fn flushes(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_body_that_flushes_still_does() {
        let flushes = |body| {
            let around = Around { before: (*b"/a").into(), after: [].into() };
            Surrounded { around, body, addition: None, next: Next::Before }.flushes()
        };
        assert!(flushes(Body::Pull(Box::new(Slow))));
        assert!(!flushes(Body::Empty));
    }
}
