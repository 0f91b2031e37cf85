//! A directory as one job reads it, and a page that another job makes of it: neither runs on the loop, however long the
//! list is.

use std::ffi::CString;

use bytes::Bytes;
use tw_disk::{Disk, Entry, JobSource, LIST_MAX, Listing};
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_request::body::Body;
use tw_request::plan::Outcome;
use tw_request::request::Request;

use super::page::Extent;

/// Directory of a request that was read.
pub(crate) struct Directory {
    path: CString,
    disk: Disk,
    listing: Listing,
}

/// Metadata of entries that are symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryLinks {
    /// Metadata of the files that the links lead to.
    Followed,
    /// Metadata of the links.
    Shown,
}

/// Page about a directory.
pub(crate) struct Page {
    text: Vec<u8>,
    /// True if the page has bytes that are not ASCII, and all of it is UTF-8.
    is_utf8: bool,
}

impl Directory {
    /// Reads the directory of `r`, and logs what the list leaves out. Waits for the disk. The error is the response to a
    /// request whose directory cannot be read.
    pub(crate) async fn read(r: &mut Request, links: EntryLinks) -> Result<Self, Outcome> {
        let path = directory(r);
        let Some(disk) = r.disk().cloned() else { return Err(Outcome::Status(500)) };
        r.costs.account.source = JobSource::of(path.to_bytes());
        let event_loop = r.client().event_loop.clone();
        // Links in the path of the directory itself are followed in any case.
        let in_path = u32::try_from(path.to_bytes().len()).unwrap_or(u32::MAX);
        let list = async || match links {
            EntryLinks::Followed => disk.list(&mut r.costs.account, &path, LIST_MAX).await,
            EntryLinks::Shown => disk.list_links(&mut r.costs.account, &path, LIST_MAX, in_path).await,
        };
        match event_loop.retry_with_descriptor(list).await {
            Ok(listing) => {
                report(r, &path, &listing);
                Ok(Self { path, disk, listing })
            }
            Err(error) => Err(file_response::refuse(r, &path, &error)),
        }
    }

    /// Has a job make the page. The error is the response if the pool takes no job.
    pub(crate) async fn page(
        self,
        r: &mut Request,
        make: impl FnOnce(Vec<Entry>, Extent) -> Vec<u8> + Send + 'static,
    ) -> Result<Page, Outcome> {
        let Self { path, disk, listing } = self;
        let make = move || {
            let extent = if listing.truncated { Extent::Truncated } else { Extent::Whole };
            let text = make(listing.entries, extent);
            let is_utf8 = !text.is_ascii() && std::str::from_utf8(&text).is_ok();
            Page { text, is_utf8 }
        };
        match disk.pool().run(&mut r.costs.account, make).await {
            Ok(page) => Ok(page),
            Err(error) => Err(file_response::refuse(r, &path, &error)),
        }
    }
}

impl Page {
    /// Sets the head of the response, and returns the body.
    // DIFF(nginx): a page with names that are UTF-8 says so.
    pub(crate) fn respond(self, r: &mut Request, content_type: &'static str, charset: &'static str) -> Body {
        let charset = if self.is_utf8 && content_type == "text/html" { "utf-8" } else { charset };
        r.response.status = 200;
        r.response.content_type = Bytes::from_static(content_type.as_bytes());
        r.response.charset = Bytes::from_static(charset.as_bytes());
        // DIFF(nginx): the length of the page is known.
        Body::Bytes(self.text.into())
    }
}

/// The directory of the request, without the slash at its end.
fn directory(r: &Request) -> CString {
    let mut path = Vec::new();
    let path = r.filename(&mut path).to_bytes();
    let path = match path {
        [shorter @ .., b'/'] if !shorter.is_empty() => shorter,
        path => path,
    };
    CString::new(path).unwrap_or_default()
}

/// Logs what a listing leaves out.
fn report(r: &Request, path: &CString, listing: &Listing) {
    let shown = Text(path.to_bytes());
    if let Some(errno) = listing.hidden_by {
        let text = tw_base::Errno::from(errno);
        r.log(Level::Crit, format_args!("stat() of entries of \"{shown}\" failed ({text})"));
    }
    if listing.truncated {
        r.log(
            Level::Warn,
            format_args!("\"{shown}\" has more than {LIST_MAX} entries, the others are not listed"),
        );
    }
}
