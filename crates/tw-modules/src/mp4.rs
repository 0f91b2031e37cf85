//! `mp4`: a part of a video, `?start=` and `?end=` in seconds (nginx: ngx_http_mp4_module). Content phase, before other
//! files.
//!
//! The boxes at the top of the file are read through the disk door; `moov` is read whole, and cut by a job of the pool
//! if it is long. The response is a new head and one range of the file.

mod movie;

use std::ffi::{CStr, CString};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::units::ExtraDecimals;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_disk::{Errno, FileKind, Op};
use tw_http::{Known, Method, target};
use tw_log::{Level, Text};
use tw_server::http::Http;
use tw_server::http::body::{Body, FileSpan};
use tw_server::http::files::{self, OpenFile};
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::{Ranges, Request};
use tw_server::load::Resolve;

use self::movie::{Fault, FileLayout, ParsedHeader, Part, PartStart, Piece, read_header};
use crate::static_files;

/// Longest content of `ftyp`, bytes.
const FTYP_MAX: u64 = 1024;
/// Most boxes looked at at the top of a file.
const BOXES_MAX: usize = 65_536;
/// Bytes read at once to look at boxes.
const WINDOW_SIZE: usize = 4 << 10;
/// Bytes of a long box read at once.
const READ_SIZE: usize = 1 << 20;
/// Longest `moov` cut on the loop, bytes: some 8,000 rows, a tenth of a millisecond.
const INLINE_MAX: usize = 64 << 10;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<()>,
    buffer_size: Setting<usize>,
    max_buffer_size: Setting<usize>,
    start_key_frame: Setting<bool>,
}

/// Videos at one location.
pub(crate) struct Mp4 {
    /// Only the blocks of a location that are no locations inherit it.
    is_on: bool,
    buffer_size: usize,
    max_buffer_size: usize,
    begin: PartStart,
}

impl Settings<Http> for Mp4 {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = &[
        Limit::directive(
            "mp4_max_buffer_size",
            "Bytes of the description of one film in memory",
            "500; the error log says so",
        ),
        Limit::count(
            "BOXES_MAX",
            BOXES_MAX as u64,
            "Boxes looked at at the top of one film",
            "500; the error log says so",
        ),
        Limit::bytes(
            "READ_SIZE",
            READ_SIZE as u64,
            "Bytes of the description of a film that are read at once",
            "the rest is read next",
        ),
        Limit::bytes(
            "INLINE_MAX",
            INLINE_MAX as u64,
            "Bytes of the description of a film that the loop itself cuts",
            "a longer one is cut by a pool",
        ),
        Limit::bytes("FTYP_MAX", FTYP_MAX, "Bytes of the first box of a film", "500; the error log says so"),
    ];

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
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        if r.uri.path.last() == Some(&b'/') {
            return Step::PASS;
        }
        match self.part(&r.uri.args) {
            None => static_files::open(r, whole),
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
            Err(error) => return static_files::refuse(r, &path, &error),
        };
        if file.meta().kind != FileKind::File {
            return Outcome::Pass;
        }
        let body = match self.cut(r, &file, part).await {
            Ok(Some(piece)) => body_of(&file, piece),
            Ok(None) => static_files::content(r, &file),
            Err(failure) => return failure.outcome(r, &path),
        };
        r.state.ranges = Ranges::One;
        static_files::describe(r, &file, body.len().unwrap_or_default());
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
        let Some(found) = self.read_boxes(r, file, &part).await? else { return Ok(None) };
        let Some(moov) = found.moov else {
            return Err(Fault::In("no mp4 trak atoms were found").into());
        };
        let moov = read(r, file, moov).await?;
        let around = FileLayout {
            file_size: file.meta().size,
            ftyp: found.ftyp,
            mdat_end: found.mdat.map(|mdat| mdat.end),
        };
        let piece = if moov.len() <= INLINE_MAX {
            movie::cut(moov, &around, &part)
        } else {
            let disk = r.disk().cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let work = move || movie::cut(moov, &around, &part);
            disk.pool().run(&mut r.costs.account, work).await.map_err(io::Error::other)?
        };
        Ok(Some(piece?))
    }

    /// Reads the boxes at the top of the file. `None` if the whole file is requested, and a player can use it
    /// unchanged.
    async fn read_boxes(
        &self,
        r: &mut Request,
        file: &OpenFile,
        part: &Part,
    ) -> Result<Option<Found>, Failure> {
        let size = file.meta().size;
        let mut found = Found::default();
        let mut window = Window::default();
        let mut at = 0;
        for count in 0.. {
            if at >= size || (found.moov.is_some() && found.mdat.is_some()) {
                break;
            }
            if count == BOXES_MAX {
                // DIFF(nginx): nginx looks at any number of boxes.
                return Err(Fault::In("too many mp4 atoms").into());
            }
            let header = match read_header(window.front(r, file, at, size).await?, size - at)? {
                ParsedHeader::Box(header) => header,
                ParsedHeader::NeedMore => return Err(Fault::Truncated.into()),
                ParsedHeader::End => break,
            };
            let content = at + header.header_len..at + header.size;
            at = content.end;
            let len = content.end - content.start;
            match &header.name {
                b"ftyp" if len > FTYP_MAX => return Err(Fault::FtypTooLarge(len).into()),
                b"ftyp" if found.ftyp.is_some() => return Err(Fault::Duplicate("ftyp").into()),
                b"ftyp" => found.ftyp = Some(read(r, file, content).await?),
                b"moov" if found.mdat.is_none() && part.start_ms == 0 && part.length_ms == 0 => {
                    return Ok(None);
                }
                b"moov" if found.moov.is_some() => return Err(Fault::Duplicate("moov").into()),
                b"moov" if len > self.buffer_size.max(self.max_buffer_size) as u64 => {
                    return Err(Fault::MoovTooLarge(len).into());
                }
                b"moov" => found.moov = Some(content),
                b"mdat" if found.mdat.is_some() => return Err(Fault::Duplicate("mdat").into()),
                b"mdat" => found.mdat = Some(content),
                _ => {}
            }
        }
        Ok(Some(found))
    }
}

/// Answers with the whole file.
fn whole(r: &mut Request, file: &Rc<OpenFile>) -> Outcome {
    match file.meta().kind {
        FileKind::File => static_files::whole(r, file),
        _ => Outcome::Pass,
    }
}

/// Boxes found at the top of a file.
#[derive(Default)]
struct Found {
    ftyp: Option<Vec<u8>>,
    moov: Option<Range<u64>>,
    mdat: Option<Range<u64>>,
}

/// Why there is no part.
enum Failure {
    /// The file is not as it should be.
    Fault(Fault),
    /// The file cannot be read.
    Io(io::Error),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    fn outcome(self, r: &mut Request, path: &CStr) -> Outcome {
        let shown = Text(path.to_bytes());
        let error = match self {
            Self::Fault(fault) => {
                r.log(Level::Error, format_args!("{}", fault.in_file(shown)));
                return Outcome::Status(500);
            }
            Self::Io(error) => error,
        };
        match error.raw_os_error() {
            Some(number) => {
                let error = Op::Read.failed(Errno::from_raw_os_error(number));
                r.log(Level::Crit, format_args!("{}", error.on(path)));
                Outcome::Status(500)
            }
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                r.log(Level::Crit, format_args!("pread() read less than there was of \"{shown}\""));
                Outcome::Status(500)
            }
            None => {
                r.log(Level::Error, format_args!("{error}"));
                r.out.fields.set(Known::RetryAfter, "1");
                Outcome::Status(503)
            }
        }
    }
}

/// The bytes that were read last to look at boxes.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Bytes from `at` on: a whole header, if the file is long enough.
    async fn front(
        &mut self,
        r: &mut Request,
        file: &OpenFile,
        at: u64,
        size: u64,
    ) -> Result<&[u8], Failure> {
        let needed = (size - at).min(movie::HEADER_MAX as u64);
        let is_here = at >= self.start && at + needed <= self.start + self.bytes.len() as u64;
        if !is_here {
            self.bytes = read(r, file, at..size.min(at + WINDOW_SIZE as u64)).await?;
            self.start = at;
        }
        Ok(self.bytes.get((at - self.start) as usize..).unwrap_or_default())
    }
}

/// Reads all of a range.
async fn read(r: &mut Request, file: &OpenFile, range: Range<u64>) -> Result<Vec<u8>, Failure> {
    let len = (range.end - range.start) as usize;
    let mut content = Vec::with_capacity(len);
    while content.len() < len {
        let want = (len - content.len()).min(READ_SIZE);
        let piece = file.read(range.start + content.len() as u64, want, r).await?;
        if piece.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        content.extend_from_slice(&piece);
    }
    Ok(content)
}

fn body_of(file: &Rc<OpenFile>, piece: Piece) -> Body {
    let span =
        FileSpan { file: file.clone(), offset: piece.data.start, len: piece.data.end - piece.data.start };
    Body::Parts([Body::Bytes(Bytes::from(piece.head)), Body::File(span)].into())
}

/// Seconds with a fraction as milliseconds; what is behind the third digit does not count.
fn milliseconds(text: &[u8]) -> Option<u64> {
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
