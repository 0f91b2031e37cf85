//! `hls`: HTTP Live Streaming from MP4 and MOV files (nginx: ngx_http_hls_module; RFC 8216). Content phase, before other files.
//!
//! ```text
//! /v.mp4.m3u8 ─┐                              ┌─ playlist: fragments that begin with key frames
//!              ├─ description of /v.mp4 ─ job ┤
//! /v.mp4.ts   ─┘  (the reader of `mp4`)       └─ segment: samples, read and put into packets as the client takes them
//! ```
//! `codec` knows the codecs, `transport_stream` makes packets; both are bytes in, bytes out. Nothing in a file decides how much
//! memory is taken: tables stay as they are in the file, and are walked along.

mod codec;
mod media_tracks;
mod playlist;
mod segment;
mod shared_movies;
mod transport_stream;

use std::ffi::CString;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, Buffers, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_disk::FileKind;
use tw_http::{HeaderName, Method, target};
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_request::body::Body;
use tw_request::files::{self, OpenFile};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Ranges, Request};

use self::media_tracks::MediaTracks;
use self::playlist::{FRAGMENTS_MAX, PlaylistRange};
use self::segment::{FragmentParts, Segment};
use crate::mp4::reader::{self, Failure, WantedBoxes};
use crate::mp4::{by_length, milliseconds};

const ALL: u32 = HTTP | SERVER | LOCATION;
/// Names of media files end with these.
const EXTENSIONS: [&[u8]; 5] = [b".mp4", b".m4v", b".m4a", b".mov", b".qt"];
/// Arguments with a meaning here, which are not forwarded.
const OWN_ARGS: [&[u8]; 4] = [b"start", b"end", b"offset", b"len"];
const DIRECTIVE_OF_MOOV: &str = "hls_mp4_max_buffer_size";

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    on: Setting<()>,
    buffers: Setting<Buffers>,
    forward_args: Setting<bool>,
    fragment: Setting<Duration>,
    mp4_buffer_size: Setting<usize>,
    mp4_max_buffer_size: Setting<usize>,
}

/// Streams at one location.
pub struct Hls {
    /// Only the blocks of a location that are no locations inherit it.
    is_on: bool,
    buffers: Buffers,
    forward_args: bool,
    fragment_ms: u64,
    mp4_buffer_size: usize,
    mp4_max_buffer_size: usize,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of one frame: the number of the buffers times their size.
    directive "hls_buffers", "the response ends; the error log says so";
    /// Bytes of the description of one film in memory, once for each loop while segments of it are sent.
    directive DIRECTIVE_OF_MOOV, "500; the error log says so";
    /// Fragments of a playlist.
    constant count FRAGMENTS_MAX, "500; the error log says so";
}

impl Settings<Http> for Hls {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("hls", "", LOCATION, Args::NONE)
            .doc("Makes playlists (`NAME.mp4.m3u8`) and segments (`NAME.mp4.ts`) of MP4 and MOV files.")
            .set(|raw, node, _| {
                raw.on.replace(node, ());
                Ok(())
            }),
        record::buffers("hls_buffers", ALL)
            .default("8 2m")
            .doc("Memory for frames: a frame that is longer than all buffers ends the response.")
            .set(|raw, node, _| raw.buffers.set_buffers(node)),
        record::flag("hls_forward_args", ALL)
            .default("off")
            .since("1.5.12")
            .doc("Adds the arguments of a request for a playlist to the URIs in it.")
            .set(|raw, node, _| raw.forward_args.set_flag(node)),
        record::time("hls_fragment", ALL)
            .default("5s")
            .doc("Length of the fragments of a playlist, unless its argument len names one.")
            .set(|raw, node, _| {
                raw.fragment.set_msec(node)?;
                match raw.fragment.get() {
                    Some(&Duration::ZERO) => Err(node.error("invalid value")),
                    _ => Ok(()),
                }
            }),
        record::size("hls_mp4_buffer_size", ALL)
            .default("512k")
            .doc("Memory for the description of a video.")
            .set(|raw, node, _| raw.mp4_buffer_size.set_size(node)),
        record::size(DIRECTIVE_OF_MOOV, ALL)
            .default("10m")
            .doc("Most memory for it; a video that needs more is refused with 500.")
            .set(|raw, node, _| raw.mp4_max_buffer_size.set_size(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let fragment_ms =
            raw.fragment.take().map(|fragment| u64::try_from(fragment.as_millis()).unwrap_or(u64::MAX));
        Ok(Self {
            is_on: raw.on.is_set() || cx.block.is_nameless() && outer.is_some_and(|o| o.is_on),
            buffers: raw.buffers.or(outer.map(|o| o.buffers), Buffers { count: 8, size: 2 << 20 }),
            forward_args: raw.forward_args.or(outer.map(|o| o.forward_args), false),
            fragment_ms: fragment_ms.or(outer.map(|o| o.fragment_ms)).unwrap_or(5_000),
            mp4_buffer_size: raw.mp4_buffer_size.or(outer.map(|o| o.mp4_buffer_size), 512 << 10),
            mp4_max_buffer_size: raw.mp4_max_buffer_size.or(outer.map(|o| o.mp4_max_buffer_size), 10 << 20),
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

/// Requested form of a media file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Playlist,
    Segment,
}

impl Form {
    /// The form that a URI asks for, and the URI of the media file.
    fn of(path: &[u8]) -> Option<(Self, &[u8])> {
        let (form, media) = match path.strip_suffix(b".m3u8") {
            Some(media) => (Self::Playlist, media),
            None => (Self::Segment, path.strip_suffix(b".ts")?),
        };
        let ends_with = |extension: &&[u8]| {
            media
                .len()
                .checked_sub(extension.len())
                .is_some_and(|at| media[at..].eq_ignore_ascii_case(extension))
        };
        EXTENSIONS.iter().any(ends_with).then_some((form, media))
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Playlist => "application/vnd.apple.mpegurl",
            Self::Segment => "video/mp2t",
        }
    }
}

impl Handler for Hls {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        match Form::of(&r.uri.path) {
            None => Step::PASS,
            Some(_) if !matches!(r.method(), Method::Get | Method::Head) => Step::status(405),
            Some((form, media)) => {
                let mut path = Vec::new();
                let path = CString::from(r.filename_of(media, &mut path));
                Step::Wait(Box::pin(self.answer(r, form, path)))
            }
        }
    }
}

/// Result of looking at a movie.
enum MovieState {
    Playlist(Vec<u8>),
    Segment(Arc<MediaTracks>, Box<FragmentParts>),
    /// The fragment or playlist has no samples.
    Nothing,
}

impl Hls {
    async fn answer(&self, r: &mut Request, form: Form, path: CString) -> Outcome {
        let file = match files::open(r, &path).await {
            Ok(file) => file,
            Err(error) => return file_response::refuse(r, &path, &error),
        };
        if file.meta().kind != FileKind::File {
            return Outcome::Pass;
        }
        let movie_state = match self.find(r, form, &file).await {
            Ok(movie_state) => movie_state,
            Err(failure) => return failure.outcome(r, &path, DIRECTIVE_OF_MOOV),
        };
        let body = match movie_state {
            MovieState::Playlist(text) => Body::Bytes(text.into()),
            MovieState::Segment(media, parts) => {
                let sample_max = self.buffers.count.saturating_mul(self.buffers.size);
                Body::Pull(Box::new(Segment::new(file.clone(), media, *parts, sample_max)))
            }
            MovieState::Nothing => {
                let shown = Text(path.to_bytes());
                r.log(Level::Error, format_args!("no data between start time and end time in \"{shown}\""));
                return Outcome::Status(404);
            }
        };
        r.response.content_type = Bytes::from_static(form.media_type().as_bytes());
        file_response::describe(r, &file, body.len().unwrap_or_default());
        if form == Form::Segment {
            // The entity tag is that of the file, not of the segment.
            r.response.fields.remove_known(HeaderName::ETag);
        }
        r.state.ranges = Ranges::Refused;
        Outcome::Respond(body)
    }

    /// Makes what is asked for of a movie.
    async fn find(&self, r: &mut Request, form: Form, file: &Rc<OpenFile>) -> Result<MovieState, Failure> {
        let media = self.movie(r, file).await?;
        let len = media.movie.size();
        let time = |name: &[u8]| target::arg(&r.uri.args, name).and_then(milliseconds);
        let start_ms = time(b"start").unwrap_or(0);
        let end_ms = time(b"end").filter(|end| *end > 0);
        if form == Form::Segment {
            let find = move || {
                let parts = FragmentParts::find(&media, start_ms, end_ms.unwrap_or(u64::MAX))?;
                Ok(parts.map_or(MovieState::Nothing, |parts| MovieState::Segment(media, Box::new(parts))))
            };
            return by_length(r, len, find).await?.map_err(Failure::Fault);
        }
        let fragment_ms = time(b"len").filter(|len| *len > 0).unwrap_or(self.fragment_ms);
        let offset_ms = target::arg(&r.uri.args, b"offset").and_then(signed_milliseconds);
        let range = PlaylistRange { start_ms, end_ms, fragment_ms, offset_ms };
        let name = media_name(&r.uri.path).to_vec();
        let args = if self.forward_args { forwarded(&r.uri.args) } else { Vec::new() };
        let make = move || {
            let bounds = playlist::bounds(&media, &range)?;
            Ok(if bounds.is_empty() {
                MovieState::Nothing
            } else {
                MovieState::Playlist(playlist::text(&bounds, &name, &args, range.offset_ms))
            })
        };
        by_length(r, len, make).await?.map_err(Failure::Fault)
    }

    /// The movie in a file: one that another response has, or read anew.
    async fn movie(&self, r: &mut Request, file: &Rc<OpenFile>) -> Result<Arc<MediaTracks>, Failure> {
        let moov_max = self.mp4_buffer_size.max(self.mp4_max_buffer_size);
        if let Some(shared) = shared_movies::find(file).filter(|shared| shared.movie.size() <= moov_max) {
            return Ok(shared);
        }
        let boxes = reader::find_boxes(r, file, WantedBoxes::Moov, moov_max).await?;
        let moov = reader::read_moov(r, file, boxes.and_then(|boxes| boxes.moov)).await?;
        let media = Arc::new(by_length(r, moov.len(), move || MediaTracks::parse(moov)).await??);
        shared_movies::share(file, &media);
        Ok(media)
    }
}

/// Name of the media file in the URI of its playlist.
fn media_name(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.strip_suffix(b".m3u8").unwrap_or(name)
}

/// Arguments of a request for a playlist but for those that are for the playlist.
fn forwarded(args: &[u8]) -> Vec<u8> {
    let is_own = |arg: &[u8]| {
        let name = arg.split(|byte| *byte == b'=').next().unwrap_or_default();
        OWN_ARGS.iter().any(|own| name.eq_ignore_ascii_case(own))
    };
    let others: Vec<&[u8]> =
        args.split(|byte| *byte == b'&').filter(|arg| !arg.is_empty() && !is_own(arg)).collect();
    others.join(&b'&')
}

/// Seconds, perhaps negative, as milliseconds.
fn signed_milliseconds(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    Some(sign * i64::try_from(milliseconds(digits)?).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (path, expected) in [
            ("/v/a.mp4.m3u8", Some((Form::Playlist, "/v/a.mp4"))),
            ("/v/a.MOV.ts", Some((Form::Segment, "/v/a.MOV"))),
            ("/v/a.m4a.ts", Some((Form::Segment, "/v/a.m4a"))),
            ("/v/a.ts", None),
            ("/v/a.m3u8", None),
            ("/v/a.mp4", None),
            (".ts", None),
            ("/v/a.mp4.m3u8.ts", None),
        ] {
            let expected = expected.map(|(form, media)| (form, media.as_bytes()));
            assert_eq!(Form::of(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn arguments() {
        for (args, expected) in [
            ("", ""),
            ("a=1&b=2", "a=1&b=2"),
            ("start=1&a=1&END=2&len=3&&offset=-1&b", "a=1&b"),
            ("starts=1&lend", "starts=1&lend"),
        ] {
            assert_eq!(forwarded(args.as_bytes()), expected.as_bytes(), "{args}");
        }
        for (text, expected) in [("1.5", Some(1_500)), ("-0.25", Some(-250)), ("", None), ("--1", None)] {
            assert_eq!(signed_milliseconds(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(media_name(b"/a/b c.mp4.m3u8"), b"b c.mp4");
    }
}
