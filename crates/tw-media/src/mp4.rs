//! `mp4`: a part of a video, `?start=` and `?end=` in seconds (nginx: ngx_http_mp4_module). Content phase, before other
//! files.
//!
//! The boxes at the top of the file are read through the disk door; `moov` is read whole, and cut by a job of the pool
//! if it is long. The response is a new head and one range of the file.

pub(crate) mod movie;
pub(crate) mod reader;

use std::ffi::CString;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::units::ExtraDecimals;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_disk::FileKind;
use tw_http::{Method, target};
use tw_module_support::file_response;
use tw_request::body::{Body, FileSpan};
use tw_request::files::{self, OpenFile};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Ranges, Request};

use self::movie::{FileLayout, Part, PartStart, Piece};
use self::reader::{Failure, WantedBoxes};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    on: Setting<()>,
    buffer_size: Setting<usize>,
    max_buffer_size: Setting<usize>,
    start_key_frame: Setting<bool>,
}

/// Videos at one location.
pub struct Mp4 {
    /// Only the blocks of a location that are no locations inherit it.
    is_on: bool,
    buffer_size: usize,
    max_buffer_size: usize,
    begin: PartStart,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of the description of one film in memory.
    directive "mp4_max_buffer_size", "500; the error log says so";
    use reader::LIMITS;
    /// Bytes of the description of a film that the loop itself cuts.
    ///
    /// Longest `moov` read on the loop, bytes: some 8,000 rows, a tenth of a millisecond.
    const INLINE_MAX: usize = 64 << 10, bytes, "a longer one is cut by a pool";
}

impl Settings<Http> for Mp4 {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("mp4", "", LOCATION, Args::NONE)
            .doc("Sends the part of an MP4 file that the arguments start and end name, in seconds.")
            .set(|raw, node, _| {
                raw.on.replace(node, ());
                Ok(())
            }),
        record::size("mp4_buffer_size", ALL)
            .default("512k")
            .doc("Memory for the description of a video.")
            .set(|raw, node, _| raw.buffer_size.set_size(node)),
        record::size("mp4_max_buffer_size", ALL)
            .default("10m")
            .doc("Most memory for it; a video that needs more is refused with 500.")
            .set(|raw, node, _| raw.max_buffer_size.set_size(node)),
        record::flag("mp4_start_key_frame", ALL)
            .default("off")
            .since("1.21.4")
            .doc("Begins with the key frame before the start, and hides what is in front of it by an edit list.")
            .set(|raw, node, _| raw.start_key_frame.set_flag(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let begin =
            raw.start_key_frame.take().map(|on| if on { PartStart::AtKeyFrame } else { PartStart::Exactly });
        Ok(Self {
            // DIFF(nginx): it is lost in a `limit_except`.
            is_on: raw.on.is_set() || cx.block.is_nameless() && outer.is_some_and(|o| o.is_on),
            buffer_size: raw.buffer_size.or(outer.map(|o| o.buffer_size), 512 << 10),
            max_buffer_size: raw.max_buffer_size.or(outer.map(|o| o.max_buffer_size), 10 << 20),
            begin: begin.or(outer.map(|o| o.begin)).unwrap_or(PartStart::Exactly),
        })
    }

    fn are_shared(&self) -> bool {
        !self.is_on
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.is_on {
            plan.add(Phase::Content, self.clone());
        }
    }
}

impl Handler for Mp4 {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        if r.uri.path.last() == Some(&b'/') {
            return Step::PASS;
        }
        match self.part(&r.uri.args) {
            None => file_response::open(r, whole),
            Some(part) => Step::Wait(Box::pin(self.answer(r, part))),
        }
    }
}

impl Mp4 {
    async fn answer(&self, r: &mut Request, part: Part) -> Outcome {
        let mut path = Vec::new();
        let path = CString::from(r.filename(&mut path));
        let file = match files::open(r, &path).await {
            Ok(file) => file,
            Err(error) => return file_response::refuse(r, &path, &error),
        };
        if file.meta().kind != FileKind::File {
            return Outcome::Pass;
        }
        let body = match self.cut(r, &file, part).await {
            Ok(Some(piece)) => body_of(&file, piece),
            Ok(None) => file_response::content(r, &file),
            Err(failure) => return failure.outcome(r, &path, "mp4_max_buffer_size"),
        };
        r.state.ranges = Ranges::One;
        file_response::describe(r, &file, body.len().unwrap_or_default());
        Outcome::Respond(body)
    }

    /// Part that the arguments ask for; `None` is the whole file.
    fn part(&self, args: &[u8]) -> Option<Part> {
        let start_ms = target::arg(args, b"start").and_then(milliseconds);
        let end_ms = target::arg(args, b"end").and_then(milliseconds).filter(|end| *end > 0);
        let (start_ms, length_ms) = match (start_ms, end_ms) {
            (None, None) => return None,
            (start, end) => {
                let start = start.unwrap_or(0);
                (start, end.map_or(0, |end| end.saturating_sub(start)))
            }
        };
        Some(Part { start_ms, length_ms, begin: self.begin })
    }

    /// Cuts the part; `None` if the file can be sent unchanged.
    async fn cut(&self, r: &mut Request, file: &Rc<OpenFile>, part: Part) -> Result<Option<Piece>, Failure> {
        let boxes = WantedBoxes::Part { is_whole: part.start_ms == 0 && part.length_ms == 0 };
        let moov_max = self.buffer_size.max(self.max_buffer_size);
        let Some(found_boxes) = reader::find_boxes(r, file, boxes, moov_max).await? else { return Ok(None) };
        let moov = reader::read_moov(r, file, found_boxes.moov).await?;
        let around = FileLayout {
            file_size: file.meta().size,
            ftyp: found_boxes.ftyp,
            mdat_end: found_boxes.mdat.map(|mdat| mdat.end),
        };
        let piece = by_length(r, moov.len(), move || movie::cut(moov, &around, &part)).await?;
        Ok(Some(piece?))
    }
}

/// Works on a `moov` of `len` bytes: here, or on a thread of the pool if it is long.
pub(crate) async fn by_length<T: Send + 'static>(
    r: &mut Request,
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    if len <= INLINE_MAX {
        return Ok(work());
    }
    let disk = r.disk().cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(disk.pool().run(&mut r.costs.account, work).await.map_err(io::Error::other)?)
}

/// Answers with the whole file.
fn whole(r: &mut Request, file: &Rc<OpenFile>) -> Outcome {
    match file.meta().kind {
        FileKind::File => file_response::whole(r, file),
        _ => Outcome::Pass,
    }
}

fn body_of(file: &Rc<OpenFile>, piece: Piece) -> Body {
    let span =
        FileSpan { file: file.clone(), offset: piece.data.start, len: piece.data.end - piece.data.start };
    Body::Parts([Body::Bytes(Bytes::from(piece.head)), Body::File(span)].into())
}

/// Seconds with a fraction as milliseconds; what is behind the third digit does not count.
pub(crate) fn milliseconds(text: &[u8]) -> Option<u64> {
    tw_conf::units::fixed(text, 3, ExtraDecimals::Ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1_000)),
            ("1.5", Some(1_500)),
            (".25", Some(250)),
            ("2.", Some(2_000)),
            ("1.23456789", Some(1_234)),
            (".", Some(0)),
            ("", None),
            ("-1", None),
            ("1.2.3", None),
            ("1.2345x", None),
            ("1e3", None),
            ("9223372036854775", Some(9_223_372_036_854_775_000)),
            ("9223372036854776", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(milliseconds(text.as_bytes()), expected, "{text}");
        }
    }
}
