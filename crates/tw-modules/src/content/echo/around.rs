//! A body with lines before and after it.

use std::io;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use tw_module_support::changed_body::{refuse_ranges, remove_length};
use tw_request::body::{Body, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::Request;
use tw_request::vars::Template;

/// Lines before and after a body.
pub(super) struct SurroundingLines {
    pub(super) before: Box<[Template]>,
    pub(super) after: Box<[Template]>,
}

impl SurroundingLines {
    pub(super) fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}

/// A body between lines.
pub(super) struct Surrounded {
    around: Arc<SurroundingLines>,
    /// Lines before the body that were not sent yet.
    before: Bytes,
    body: Body,
    end: End,
}

/// End of the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// The lines after it were made.
    Reached,
}

impl Surrounded {
    /// Puts lines around `body`, the response of `r`, whose head then fits the whole.
    pub(super) fn new(around: Arc<SurroundingLines>, body: Body, r: &mut Request) -> Self {
        if !r.is_subrequest() {
            remove_length(r);
            refuse_ranges(r);
            r.response.weaken_etag();
        }
        let mut before = Vec::new();
        around.before.iter().for_each(|line| line.eval(r, &mut before));
        Self { around, before: before.into(), body, end: End::Open }
    }
}

impl Pull for Surrounded {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move {
            if !self.before.is_empty() {
                return Ok(Some(std::mem::take(&mut self.before)));
            }
            if self.end == End::Reached {
                return Ok(None);
            }
            if let Some(piece) = self.body.next(want, r).await? {
                return Ok(Some(piece));
            }
            self.end = End::Reached;
            let mut after = Vec::new();
            self.around.after.iter().for_each(|line| line.eval(r, &mut after));
            Ok((!after.is_empty()).then(|| after.into()))
        })
    }

    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        self.body.run_ahead(cx);
    }

    fn flushes(&self) -> bool {
        self.body.flushes()
    }

    fn holds_head(&self) -> bool {
        self.before.is_empty() && self.body.holds_head()
    }
}
