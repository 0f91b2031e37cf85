//! Responses made of files: opening, the head, the content, and the refusal of a file that cannot be opened.
//!
//! A file that is open and in memory is sent without a future; anything else waits in one.

use std::ffi::{CStr, CString};
use std::rc::Rc;

use bytes::Bytes;
use tw_disk::{DiskError, Errno, Now, Op};
use tw_http::condition::Etag;
use tw_http::target;
use tw_log::Level;
use tw_request::body::{Body, FileSpan};
use tw_request::files::{self, OpenFile};
use tw_request::plan::{Outcome, Step};
use tw_request::request::{Ranges, Request};

/// Opens the file of the URI and answers with it; waits only for what is not in memory.
pub fn open<'a>(r: &'a mut Request, answer: fn(&mut Request, &Rc<OpenFile>) -> Outcome) -> Step<'a> {
    let event_loop = r.client().event_loop.clone();
    let mut buf = event_loop.buffers.path.take();
    let path = r.filename(&mut buf);
    let opened = files::open_now(r, path);
    let step = match opened {
        Now::Ready(Ok(file)) => Step::Now(answer(r, &file)),
        Now::Ready(Err(errno)) => {
            let outcome = refuse(r, path, &Op::Open.failed(errno));
            Step::Now(outcome)
        }
        Now::Cold => {
            let path = CString::from(path);
            Step::Wait(Box::pin(async move {
                match files::open(r, &path).await {
                    Ok(file) => answer(r, &file),
                    Err(error) => refuse(r, &path, &error),
                }
            }))
        }
    };
    event_loop.buffers.path.set(buf);
    step
}

/// Answers with a regular file, with the media type of the URI.
pub fn whole(r: &mut Request, file: &Rc<OpenFile>) -> Outcome {
    let meta = file.meta();
    describe(r, file, meta.size);
    r.response.memo = file.head();
    r.state.ranges = Ranges::Allowed;
    Outcome::Respond(content(r, file))
}

/// The head of a response of `len` bytes that is made of `file`.
pub fn describe(r: &mut Request, file: &OpenFile, len: u64) {
    let generation = r.generation().clone();
    let core = &generation.plan(r.route.plan).core;
    let meta = file.meta();
    r.response.status = 200;
    // The upstream server that sent the request here may have set the content type.
    if r.response.content_type.is_empty() {
        r.response.content_type =
            core.types.find(target::exten(&r.uri.path)).unwrap_or(&core.default_type).clone();
    }
    r.response.last_modified = Some(meta.mtime_sec);
    if core.etag {
        r.response.set_etag(if len == meta.size {
            file.etag().clone()
        } else {
            Bytes::copy_from_slice(Etag::of_file(meta.mtime_sec, len).as_bytes())
        });
    }
}

/// All of a file.
pub fn content(r: &Request, file: &Rc<OpenFile>) -> Body {
    let size = file.meta().size;
    match file.content() {
        Some(content) if !file.is_for_kernel(r) => Body::Bytes(content),
        None if size == 0 => Body::Bytes(Bytes::new()),
        _ => Body::File(FileSpan { file: file.clone(), offset: 0, len: size }),
    }
}

/// The status and the log line of a file that cannot be opened.
pub fn refuse(r: &mut Request, path: &CStr, error: &DiskError) -> Outcome {
    let (status, level) = match error.errno() {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => (404, Level::Error),
        Some(Errno::ACCESS | Errno::LOOP | Errno::MLINK) => (403, Level::Error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => (503, Level::Crit),
        Some(_) => (500, Level::Crit),
        None => (503, Level::Error),
    };
    if status == 503 {
        r.response.fields.set(tw_http::HeaderName::RetryAfter, "1");
    }
    if status != 404 || r.plan().core.log_not_found {
        r.log(level, format_args!("{}", error.on(path)));
    }
    Outcome::Status(status)
}
