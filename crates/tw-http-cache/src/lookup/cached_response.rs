//! Response from a cache: the head of an entry or of a fill, and its body.

use std::rc::Rc;
use std::sync::Arc;

use tw_cache::format::Meta;

use crate::entry::open_entries::OpenEntry;
use crate::fill::FillHead;
use tw_request::body::{Body, FileSpan};
use tw_request::cache_info::ServedFacts;
use tw_request::upstream_response::UpstreamResponse;

/// Response from a cache.
pub struct CachedResponse {
    /// Head, as the upstream server sent it.
    pub(crate) head: CachedHead,
    /// Body.
    pub(crate) body: Body,
    pub(crate) facts: ServedFacts,
}

/// Head of a cached response.
pub(crate) struct CachedHead(pub(crate) HeadSource);

/// Owner of the head.
pub(crate) enum HeadSource {
    Entry(Rc<OpenEntry>),
    Begun(Arc<FillHead>),
}

impl CachedHead {
    fn meta(&self) -> &Meta {
        match &self.0 {
            HeadSource::Entry(entry) => &entry.meta,
            HeadSource::Begun(begun) => &begun.meta,
        }
    }

    /// Restores the head into `answer`, as if the upstream server had just sent it.
    pub(crate) fn restore(&self, answer: &mut UpstreamResponse) {
        let meta = self.meta();
        answer.clear();
        answer.status = meta.status;
        answer.status_line = meta.status_line.clone();
        answer.fields.clone_from(&meta.fields);
        // DIFF(nginx): the length of a complete response is known, also if its upstream server sent none.
        answer.content_length = match &self.0 {
            HeadSource::Entry(entry) => Some(entry.len),
            HeadSource::Begun(begun) => begun.len,
        };
    }
}

impl CachedResponse {
    /// The response that an entry of this age has, in seconds.
    pub(crate) fn of_entry(entry: Rc<OpenEntry>, age: u32) -> Self {
        let facts = ServedFacts { age, valid_until: entry.meta.lifetime.valid_until, follows: false };
        let body = match &entry.body {
            Some(body) if body.is_empty() => Body::Empty,
            Some(body) => Body::Bytes(body.clone()),
            None => {
                Body::File(FileSpan { file: entry.file.clone(), offset: entry.body_offset(), len: entry.len })
            }
        };
        Self { head: CachedHead(HeadSource::Entry(entry)), body, facts }
    }
}
