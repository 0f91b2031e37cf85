//! Boxes at the top of an MP4 file, read through the disk door.

use std::ffi::CStr;
use std::io;
use std::ops::Range;

use tw_disk::{Errno, Op};
use tw_http::HeaderName;
use tw_log::{Level, Text};
use tw_request::files::OpenFile;
use tw_request::plan::Outcome;
use tw_request::request::Request;

use super::movie::{Fault, HEADER_MAX, ParsedHeader, read_header};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Boxes looked at at the top of one film.
    pub(crate) const BOXES_MAX: usize = 65_536, count, "500; the error log says so";
    /// Bytes of the description of a film that are read at once.
    pub(crate) const READ_SIZE: usize = 1 << 20, bytes, "the rest is read next";
    /// Bytes of the first box of a film.
    pub(crate) const FTYP_MAX: u64 = 1024, bytes, "500; the error log says so";
}

/// Bytes read at once to look at boxes.
const WINDOW_SIZE: usize = 4 << 10;

/// Boxes that are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedBoxes {
    /// Boxes that a part is made of.
    Part {
        /// True if the part is the whole movie: a file that begins with its description is sent unchanged then.
        is_whole: bool,
    },
    /// Only the description of the movie.
    Moov,
}

/// Boxes found at the top of a file.
#[derive(Default)]
pub(crate) struct FoundBoxes {
    pub(crate) ftyp: Option<Vec<u8>>,
    pub(crate) moov: Option<Range<u64>>,
    pub(crate) mdat: Option<Range<u64>>,
}

impl FoundBoxes {
    fn is_complete(&self, boxes: WantedBoxes) -> bool {
        self.moov.is_some() && (self.mdat.is_some() || boxes == WantedBoxes::Moov)
    }
}

/// Reads the boxes at the top of the file; `moov` has at most `moov_max` bytes. `None` if the whole file is requested, and a
/// player can use it unchanged.
pub(crate) async fn find_boxes(
    r: &mut Request,
    file: &OpenFile,
    boxes: WantedBoxes,
    moov_max: usize,
) -> Result<Option<FoundBoxes>, Failure> {
    let size = file.meta().size;
    let mut found_boxes = FoundBoxes::default();
    let mut window = Window::default();
    let mut at = 0;
    for count in 0.. {
        if at >= size || found_boxes.is_complete(boxes) {
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
            b"moov" if found_boxes.mdat.is_none() && boxes == (WantedBoxes::Part { is_whole: true }) => {
                return Ok(None);
            }
            b"moov" if found_boxes.moov.is_some() => return Err(Fault::Duplicate("moov").into()),
            b"moov" if len > moov_max as u64 => return Err(Fault::MoovTooLarge(len).into()),
            b"moov" => found_boxes.moov = Some(content),
            _ if boxes == WantedBoxes::Moov => {}
            b"ftyp" if len > FTYP_MAX => return Err(Fault::FtypTooLarge(len).into()),
            b"ftyp" if found_boxes.ftyp.is_some() => return Err(Fault::Duplicate("ftyp").into()),
            b"ftyp" => found_boxes.ftyp = Some(read(r, file, content).await?),
            b"mdat" if found_boxes.mdat.is_some() => return Err(Fault::Duplicate("mdat").into()),
            b"mdat" => found_boxes.mdat = Some(content),
            _ => {}
        }
    }
    Ok(Some(found_boxes))
}

/// Reads the content of `moov`.
pub(crate) async fn read_moov(
    r: &mut Request,
    file: &OpenFile,
    moov: Option<Range<u64>>,
) -> Result<Vec<u8>, Failure> {
    match moov {
        Some(moov) => Ok(read(r, file, moov).await?),
        None => Err(Fault::In("no mp4 trak atoms were found").into()),
    }
}

/// Reason why a file was not read.
pub(crate) enum Failure {
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
    /// Logs it, with the name of the file; returns the status to answer with. `directive` is the one that bounds `moov`.
    pub(crate) fn outcome(self, r: &mut Request, path: &CStr, directive: &str) -> Outcome {
        let shown = Text(path.to_bytes());
        let error = match self {
            Self::Fault(fault) => {
                r.log(Level::Error, format_args!("{}", fault.in_file(shown, directive)));
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
                r.response.fields.set(HeaderName::RetryAfter, "1");
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
        let needed = (size - at).min(HEADER_MAX as u64);
        let is_here = at >= self.start && at + needed <= self.start + self.bytes.len() as u64;
        if !is_here {
            self.bytes = read(r, file, at..size.min(at + WINDOW_SIZE as u64)).await?;
            self.start = at;
        }
        Ok(self.bytes.get((at - self.start) as usize..).unwrap_or_default())
    }
}

/// Reads all of a range.
pub(crate) async fn read(r: &mut Request, file: &OpenFile, range: Range<u64>) -> io::Result<Vec<u8>> {
    let len = (range.end - range.start) as usize;
    let mut content = Vec::with_capacity(len);
    while content.len() < len {
        let want = (len - content.len()).min(READ_SIZE);
        let piece = file.read(range.start + content.len() as u64, want, r).await?;
        if piece.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        content.extend_from_slice(&piece);
    }
    Ok(content)
}
