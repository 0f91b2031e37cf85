//! `image_filter`: tests, measures, reduces, crops and turns pictures (nginx: ngx_http_image_filter_module). Filter of whole
//! bodies.
//!
//! ```text
//! first bytes ─ no picture ─→ 415            whole body ─ header ─ size ──────────────→ JSON
//!     └ test ─→ sent as it is                               ├ small enough ───────────→ sent as it is
//!                                                           └ wait for a turn ─ pool ─→ new picture
//! ```
//! A picture with too many pixels is refused by its header. A loop never decodes: a few pictures are changed at a time by
//! the pool, and other requests wait in a queue in which clients take turns.

mod change;
mod codec;
mod format;
mod number;
mod orientation;
mod picture;

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_disk::{Account, DiskError, JobClass, JobSource};
use tw_http::{HeaderName, Method};
use tw_log::Level;
use tw_module_support::changed_body::{refuse_ranges, remove_length, without_length};
use tw_module_support::turn_queue::{ClientKey, TurnLimits, TurnQueue, TurnWait, wait_for_turn};
use tw_request::body::{AlreadyLogged, Body};
use tw_request::plan::{LocalFuture, Plan, WholeBodyFilter};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_rt::available_memory;

use self::change::{Change, Shape};
use self::format::{PictureFormat, PictureHeader, SCANS_MAX, SIGNATURE_LEN, STEPS_MAX};
use self::number::{Bounds, Number, NumberDirective, invalid_parameter};
use self::orientation::Orientation;
use self::picture::Rotation;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Directives with a number that may have variables, and their defaults.
const JPEG_QUALITY: NumberDirective = NumberDirective { name: "image_filter_jpeg_quality", default: 75 };
const SHARPEN: NumberDirective = NumberDirective { name: "image_filter_sharpen", default: 0 };
const WEBP_QUALITY: NumberDirective = NumberDirective { name: "image_filter_webp_quality", default: 80 };

/// Bytes of the body that are read at once.
const READ_SIZE: usize = 64 << 10;
/// The queue of pictures.
const QUEUE: TurnLimits =
    TurnLimits { at_once: PICTURES_AT_ONCE, waiting: WAITING_MAX, waiting_of_client: WAITING_OF_CLIENT_MAX };

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    action: Setting<RawAction>,
    rotation: Setting<Word>,
    buffer: Setting<usize>,
    interlace: Setting<bool>,
    jpeg_quality: Setting<Word>,
    orientation: Setting<bool>,
    sharpen: Setting<Word>,
    transparency: Setting<bool>,
    webp_quality: Setting<Word>,
    max_pixels: Setting<u64>,
}

/// `image_filter` but for `rotate`, as written.
enum RawAction {
    Off,
    Test,
    Size,
    /// Width and height.
    Resize([Word; 2]),
    Crop([Word; 2]),
}

/// Treatment of pictures at one location.
pub struct ImageFilter {
    action: Action,
    rotation: Option<Number>,
    buffer: usize,
    max_pixels: u64,
    exif_orientation: ExifOrientation,
    jpeg_quality: Number,
    sharpen: Number,
    transparency: Transparency,
    queue: Arc<TurnQueue>,
}

#[derive(Clone)]
enum Action {
    Off,
    Test,
    Size,
    /// Only turns.
    Rotate,
    Resize(Bounds),
    Crop(Bounds),
}

/// Treatment of the orientation that EXIF data of a picture say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExifOrientation {
    Applied,
    Ignored,
}

/// Treatment of transparent colours of a palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transparency {
    Keep,
    Drop,
}

impl RawAction {
    fn read(raw: &mut Raw, node: &Node) -> Result<(), ConfError> {
        let kind = node.arg(0)?;
        let action = match (kind.as_str(), &*node.args) {
            (Some("off"), [_]) => Self::Off,
            (Some("test"), [_]) => Self::Test,
            (Some("size"), [_]) => Self::Size,
            (Some("rotate"), [_, degrees]) => {
                raw.rotation.replace(node, degrees.clone());
                return Ok(());
            }
            (Some("resize"), [_, width, height]) => Self::Resize([width.clone(), height.clone()]),
            (Some("crop"), [_, width, height]) => Self::Crop([width.clone(), height.clone()]),
            _ => return Err(node.invalid_parameter(kind)),
        };
        raw.action.replace(node, action);
        Ok(())
    }
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of a picture that is read.
    directive "image_filter_buffer", "415; the error log says so";
    /// Pixels of a picture that is changed, by its header.
    directive "image_filter_max_pixels", "415; the error log says so";
    /// Segments of a JPEG file and bytes between them, or chunks of a PNG or WebP file, that are looked at in search of its
    /// size and orientation.
    constant count STEPS_MAX, "its size is unknown: 415; its orientation: it is upright";
    /// Scans of a JPEG file that is changed.
    constant count SCANS_MAX, "415";
    /// Pictures changed at the same time.
    ///
    /// Pictures that are changed at a time. Threads of the pool only compute then: more of them than processors would only take
    /// time from the loops.
    const PICTURES_AT_ONCE: usize = 2, count, "other requests wait";
    /// Requests whose pictures wait for that.
    const WAITING_MAX: usize = 256, count, "503 with Retry-After; the error log says so";
    /// Requests of one address, or IPv6 network of 64 bits, among them.
    const WAITING_OF_CLIENT_MAX: usize = 32, count, "503 with Retry-After; the error log says so";
    /// Time a picture waits for that.
    const WAIT_MAX: Duration = Duration::from_secs(60), time, "503 with Retry-After; the error log says so";
    /// Part of the available memory that one picture may take, by its pixels: one half.
    const AVAILABLE_PART: u64 = 2, count, "503 with Retry-After; the error log says so";
}

impl Settings<Http> for ImageFilter {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "image_filter",
            "off | test | size | rotate 90|180|270 | resize width height | crop width height",
            LOCATION,
            Args::range(1, 3),
        )
        .default("off")
        .doc("Tests, measures, turns, reduces or crops pictures; `-` is any length, and variables may stand for numbers.")
        .set(|raw, node, _| RawAction::read(raw, node)),
        record::size("image_filter_buffer", ALL)
            .default("1M")
            .doc("Longest picture that is read; a longer one is answered with 415.")
            .set(|raw, node, _| raw.buffer.set_size(node)),
        record::flag("image_filter_interlace", ALL)
            .default("off")
            .since("1.3.15")
            .doc("Has no effect: pictures are never interlaced or progressive. `on` is reported.")
            .set(|raw, node, cx| {
                raw.interlace.set_flag(node)?;
                if raw.interlace.get() == Some(&true) {
                    cx.warn(node.span, "\"image_filter_interlace\" has no effect: pictures are never interlaced");
                }
                Ok(())
            }),
        record::new(JPEG_QUALITY.name, "quality", ALL, Args::exact(1))
            .default("75")
            .doc("Quality of JPEG pictures, from 1 to 100; may have variables.")
            .set(|raw, node, _| raw.jpeg_quality.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::number("image_filter_max_pixels", ALL)
            .default("16000000")
            .doc("Most pixels of a picture that is changed; one with more is answered with 415, before it is decoded.")
            .set(|raw, node, _| raw.max_pixels.set_number(node)),
        record::flag("image_filter_orientation", ALL)
            .default("on")
            .since("Tailwater 0.2")
            .doc("Turns and mirrors pictures as the orientation of their EXIF data says, which a changed picture has no more. Sizes are those after it.")
            .set(|raw, node, _| raw.orientation.set_flag(node)),
        record::new(SHARPEN.name, "percent", ALL, Args::exact(1))
            .default("0")
            .doc("Sharpens pictures that are changed; may exceed 100, and may have variables.")
            .set(|raw, node, _| raw.sharpen.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::flag("image_filter_transparency", ALL)
            .default("on")
            .doc("Keeps transparent colours of GIF pictures, and of PNG pictures with a palette.")
            .set(|raw, node, _| raw.transparency.set_flag(node)),
        record::new(WEBP_QUALITY.name, "quality", ALL, Args::exact(1))
            .default("80")
            .since("1.11.6")
            .doc("Has no effect: WebP pictures are written without loss. A value is reported.")
            .set(|raw, node, cx| {
                raw.webp_quality.set_with(node, |node| Ok(node.arg(0)?.clone()))?;
                // DIFF(nginx): WebP is written without loss, and nothing is interlaced.
                let what = "\"image_filter_webp_quality\" has no effect: WebP pictures are written without loss";
                cx.warn(node.span, what);
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let is_degrees = |n: u32| Rotation::of(n).is_some();
        let rotation = match raw.rotation.take() {
            Some(word) => Some(Number::compile(&word, is_degrees, invalid_parameter, cx)?),
            None => None,
        };
        let action = match (raw.action.take(), &rotation) {
            (Some(RawAction::Off), _) => Some(Action::Off),
            (Some(RawAction::Test), _) => Some(Action::Test),
            (Some(RawAction::Size), _) => Some(Action::Size),
            (Some(RawAction::Resize(sides)), _) => Some(Action::Resize(Bounds::compile(&sides, cx)?)),
            (Some(RawAction::Crop(sides)), _) => Some(Action::Crop(Bounds::compile(&sides, cx)?)),
            (None, Some(_)) => Some(Action::Rotate),
            (None, None) => None,
        };
        let (action, rotation) = match (action, outer) {
            (Some(action), _) => (action, rotation),
            (None, Some(outer)) => (outer.action.clone(), outer.rotation.clone()),
            (None, None) => (Action::Off, None),
        };
        let is_quality = |n: u32| (1..=100).contains(&n);
        let outer_quality = outer.map(|o| &o.jpeg_quality);
        let jpeg_quality = Number::resolve(&JPEG_QUALITY, raw.jpeg_quality, outer_quality, is_quality, cx)?;
        // `image_filter_webp_quality` has no effect, but its value is checked.
        Number::resolve(&WEBP_QUALITY, raw.webp_quality, None, is_quality, cx)?;
        let sharpen = Number::resolve(&SHARPEN, raw.sharpen, outer.map(|o| &o.sharpen), |_| true, cx)?;
        let transparency =
            raw.transparency.take().map(|keep| if keep { Transparency::Keep } else { Transparency::Drop });
        let exif_orientation = raw
            .orientation
            .take()
            .map(|is_applied| if is_applied { ExifOrientation::Applied } else { ExifOrientation::Ignored });
        Ok(Self {
            action,
            rotation,
            buffer: raw.buffer.or(outer.map(|o| o.buffer), 1 << 20),
            max_pixels: raw.max_pixels.or(outer.map(|o| o.max_pixels), 16_000_000),
            exif_orientation: exif_orientation
                .or(outer.map(|o| o.exif_orientation))
                .unwrap_or(ExifOrientation::Applied),
            jpeg_quality,
            sharpen,
            transparency: transparency.or(outer.map(|o| o.transparency)).unwrap_or(Transparency::Keep),
            queue: cx.keep(b"image_filter", |_| true, || TurnQueue::new(QUEUE)),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !matches!(self.action, Action::Off) {
            plan.add_whole_body_filter(self.clone());
        }
    }
}

/// Response that is no picture as the location wants it: the status to answer with.
struct Refused(u16);

const UNSUPPORTED: Refused = Refused(415);

impl WholeBodyFilter for ImageFilter {
    fn filter<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>> {
        Box::pin(async move {
            if !applies_to(r, &body) {
                return Ok(body);
            }
            // DIFF(nginx): the head that an upstream server sends to HEAD is sent; nginx makes 415 of it.
            if r.method() == Method::Head && matches!(body, Body::Pull(_) | Body::Empty) {
                remove_length(r);
                refuse_ranges(r);
                return Ok(without_length(body));
            }
            self.picture(r, body).await.map_err(|Refused(status)| {
                r.response.reset(status);
                if status == 503 {
                    r.response.fields.set(HeaderName::RetryAfter, "1");
                }
                status
            })
        })
    }
}

/// Returns true for a response that has to be a picture.
// DIFF(nginx): redirects and requests for a password are sent as they are; nginx makes 415 of them.
fn applies_to(r: &Request, body: &Body) -> bool {
    let is_for_client = matches!(r.response.status, 300..=399 | 401 | 407);
    let is_other_protocol = matches!(body, Body::Upgraded(_));
    !is_for_client && !is_other_protocol && !r.is_subrequest()
}

impl ImageFilter {
    async fn picture(&self, r: &mut Request, mut body: Body) -> Result<Body, Refused> {
        if let Some(length) = body.len().filter(|length| *length > self.buffer as u64) {
            return Err(refuse(r, format_args!("too big response: {length}")));
        }
        if r.response.content_type.to_ascii_lowercase().starts_with(b"multipart/x-mixed-replace") {
            return Err(refuse(r, format_args!("multipart/x-mixed-replace response")));
        }
        let is_test = matches!(self.action, Action::Test);
        let was_read = !matches!(body, Body::Bytes(_) | Body::File(_) | Body::Empty);
        let front = if was_read { None } else { body.part(0, SIGNATURE_LEN as u64) };
        let begin = match front {
            Some(mut begin) => self.gather(r, &mut begin, SIGNATURE_LEN).await?,
            // A body that can be made from its beginning only is read here; a test needs no more than the signature.
            None => self.gather(r, &mut body, if is_test { SIGNATURE_LEN } else { usize::MAX }).await?,
        };
        let Some(format) = PictureFormat::of(&begin) else {
            return match self.action {
                Action::Size => Ok(measured(r, None)),
                _ => Err(UNSUPPORTED),
            };
        };
        r.response.fields.remove(b"Refresh");
        refuse_ranges(r);
        set_type(r, format.media_type());
        if is_test && was_read {
            return Ok(Body::Parts([Body::Bytes(begin), body].into()));
        }
        if is_test {
            return Ok(body);
        }
        let file = if was_read { begin } else { self.gather(r, &mut body, usize::MAX).await? };
        self.result(r, format, file).await
    }

    /// Result for a picture that is in memory.
    async fn result(&self, r: &mut Request, format: PictureFormat, file: Bytes) -> Result<Body, Refused> {
        // DIFF(nginx): the orientation is lost, so that pictures of a phone lie on their side.
        let orientation = match self.exif_orientation {
            ExifOrientation::Applied => Orientation::of(format, &file),
            ExifOrientation::Ignored => Orientation::Upright,
        };
        let header = format.header(&file).map(|header| header.shown(orientation));
        let (shape, sides) = match &self.action {
            Action::Size => return Ok(measured(r, header.map(|header| (header, format)))),
            Action::Off | Action::Test | Action::Rotate => (Shape::Same, None),
            Action::Resize(bounds) => {
                let [width, height] = bounds.sides(r).ok_or(UNSUPPORTED)?;
                (Shape::Within { width, height }, Some([width, height]))
            }
            Action::Crop(bounds) => {
                let [width, height] = bounds.sides(r).ok_or(UNSUPPORTED)?;
                (Shape::Filled { width, height }, Some([width, height]))
            }
        };
        let degrees = self.rotation.as_ref().map(|rotation| rotation.value(r));
        let rotation = degrees.and_then(Rotation::of);
        if rotation.is_none() && (sides.is_none() || degrees.is_some_and(|degrees| degrees > 0)) {
            return Err(UNSUPPORTED);
        }
        let Some(header) = header else { return Err(refuse(r, format_args!("no size in the header"))) };
        let is_small = sides.is_some_and(|[width, height]| header.width <= width && header.height <= height);
        if is_small && rotation.is_none() && !header.has_long_fields {
            remove_length(r);
            return Ok(Body::Bytes(file));
        }
        let change = Change {
            format,
            orientation,
            shape,
            rotation,
            sharpen: self.sharpen.value(r),
            keeps_transparency: self.transparency == Transparency::Keep,
            quality: u8::try_from(self.jpeg_quality.value(r)).unwrap_or(100),
            max_pixels: self.max_pixels,
        };
        if change.quality == 0 {
            return Err(UNSUPPORTED);
        }
        let changed = self.change(r, header, change, file).await?;
        remove_length(r);
        r.response.weaken_etag();
        Ok(Body::Bytes(changed.into()))
    }

    /// Changes a picture on a thread of the pool, when it is this client's turn.
    async fn change(
        &self,
        r: &mut Request,
        header: PictureHeader,
        change: Change,
        file: Bytes,
    ) -> Result<Vec<u8>, Refused> {
        // DIFF(nginx): there are limits on pixels and scans, and on pictures that are changed at a time.
        let pixels = header.pixels();
        let max = self.max_pixels;
        if pixels > max {
            return Err(refuse(
                r,
                format_args!("too many pixels: {pixels}, image_filter_max_pixels is {max}"),
            ));
        }
        let Some(disk) = r.disk().cloned() else { return Err(Refused(500)) };
        let Ok(mut ticket) = self.queue.enter(ClientKey::of(r.client_addr())) else {
            return Err(refuse_for_now(r, format_args!("too many pictures wait to be changed")));
        };
        match wait_for_turn(r, &mut ticket, WAIT_MAX).await {
            Ok(()) => {}
            Err(TurnWait::TooLong) => {
                return Err(refuse_for_now(r, format_args!("a picture waited too long to be changed")));
            }
            Err(TurnWait::Gone(client_gone)) => {
                r.log(Level::Info, format_args!("{client_gone}"));
                return Err(Refused(499));
            }
        }
        if codec::memory(pixels) > available_memory::bytes() / AVAILABLE_PART {
            return Err(refuse_for_now(r, format_args!("too little memory for {pixels} pixels")));
        }
        // The job has a lower class than requests that wait for the disk.
        let mut account = Account::new(JobClass::Fill, JobSource::of(b"image_filter"));
        // The turn ends with the work, because a client that goes away cannot stop the work any more.
        let work = move || {
            let _turn = ticket;
            change.run(&file)
        };
        match disk.pool().run(&mut account, work).await {
            Ok(Ok(changed)) => Ok(changed),
            Ok(Err(error)) => Err(refuse(r, format_args!("{error}"))),
            Err(error @ DiskError::QueueFull { .. }) => Err(refuse_for_now(r, format_args!("{error}"))),
            Err(error) => Err(refuse(r, format_args!("{error}"))),
        }
    }

    /// Reads from the beginning of a body until it ends or `least` bytes are there; at most `image_filter_buffer`.
    async fn gather(&self, r: &mut Request, body: &mut Body, least: usize) -> Result<Bytes, Refused> {
        if let Some(all) = body.in_memory() {
            return Ok(all);
        }
        let mut gathered = Vec::new();
        while gathered.len() < least {
            match body.next(READ_SIZE, r).await {
                Ok(Some(piece)) if piece.is_empty() => tw_rt::yield_now().await,
                Ok(Some(piece)) if gathered.len() + piece.len() > self.buffer && least == usize::MAX => {
                    return Err(refuse(r, format_args!("image buffer was too small")));
                }
                Ok(Some(piece)) => gathered.extend_from_slice(&piece),
                Ok(None) => break,
                Err(error) => return Err(unreadable(r, &error)),
            }
        }
        Ok(gathered.into())
    }
}

fn set_type(r: &mut Request, media_type: &'static str) {
    r.response.content_type = Bytes::from_static(media_type.as_bytes());
    r.response.charset = Bytes::new();
}

/// The JSON of `image_filter size`.
fn measured(r: &mut Request, entry: Option<(PictureHeader, PictureFormat)>) -> Body {
    r.response.reset(200);
    set_type(r, "application/json");
    refuse_ranges(r);
    let mut json = String::new();
    let result = match entry {
        Some((PictureHeader { width, height, .. }, format)) => write!(
            json,
            "{{ \"img\" : {{ \"width\": {width}, \"height\": {height}, \"type\": \"{}\" }} }}\r\n",
            format.word()
        ),
        None => json.write_str("{}\r\n"),
    };
    result.expect("writing to memory does not fail");
    Body::Bytes(json.into())
}

/// Refuses a response that is no usable picture.
fn refuse(r: &Request, why: fmt::Arguments<'_>) -> Refused {
    r.log(Level::Error, format_args!("image filter: {why}"));
    UNSUPPORTED
}

/// There is too much to do; the client may try again.
fn refuse_for_now(r: &Request, why: fmt::Arguments<'_>) -> Refused {
    r.log(Level::Error, format_args!("image filter: {why}"));
    Refused(503)
}

/// A body that ended with an error.
fn unreadable(r: &Request, error: &io::Error) -> Refused {
    if !error.get_ref().is_some_and(|inner| inner.is::<AlreadyLogged>()) {
        r.log(Level::Error, format_args!("image filter: {error} while reading the picture"));
    }
    Refused(502)
}
