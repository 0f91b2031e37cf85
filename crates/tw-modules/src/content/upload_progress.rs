//! `track_uploads`, `report_uploads`: progress of uploads for the pages that send them (nginx-upload-progress-module, a module
//! of others). Preaccess and content phase, log handler.
//!
//! An upload has an identifier, which its page chooses. The body notes in a counter what was received; the counters of a zone
//! are shared by all loops, so any of them can tell.

mod output;
mod zone;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Contexts, Directive, HTTP, LOCATION, Node, SERVER, Setting, Span, record};
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_http::{Framing, Method, target};
use tw_log::{Level, Text};
use tw_module_support::zone::{self as zones, ZoneCounters, ZoneParameter};
use tw_request::body::Body;
use tw_request::plan::{Handler, LogHandler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::request_body::BodyProgress;
use tw_request::vars::VarDef;

use self::output::{Output, OutputFormat, RawTemplates};
use self::zone::{ID_MAX, TrackError, UploadState, UploadZone};

const ALL: Contexts = HTTP | SERVER | LOCATION;
/// Owner of the names of these zones.
const OWNER: &str = "upload_progress";
/// Header field and argument with the identifier.
const HEADER: &str = "X-Progress-ID";
/// Argument with the name of the callback.
const CALLBACK: &str = "callback";

/// Directives as written.
#[derive(Default)]
pub(crate) struct Raw {
    zones: Vec<(ZoneParameter, Span)>,
    track: Setting<(Box<[u8]>, Duration)>,
    report: Setting<Box<[u8]>>,
    header: Setting<Box<str>>,
    callback: Setting<Box<[u8]>>,
    content_type: Setting<Box<[u8]>>,
    templates: RawTemplates,
}

/// Settings of one block.
pub(crate) struct UploadProgress {
    zones: Arc<HashMap<Box<[u8]>, Arc<UploadZone>>>,
    track: Option<Tracking>,
    /// Zone that a location reports; not inherited, except by blocks that are parts of it.
    report: Option<Arc<UploadZone>>,
    header: Arc<str>,
    callback: Arc<[u8]>,
    output: Output,
}

/// `track_uploads`
#[derive(Clone)]
struct Tracking {
    zone: Arc<UploadZone>,
    /// Time for which the end of an upload is remembered.
    timeout: Duration,
}

/// Upload of a request. Dropping it ends the upload.
struct TrackedUpload {
    tracking: Tracking,
    id: Box<[u8]>,
    progress: BodyProgress,
}

/// Report of a request, for the variables of templates.
struct UploadReport {
    state: UploadState,
    callback: Box<[u8]>,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of identifiers and counters of one zone.
    parameter "upload_progress", "zone", "a size that must be given",
        "uploads that are over are forgotten; if that is too little, further ones are not tracked";
    /// Identifier of an upload.
    constant bytes ID_MAX, "the upload is not tracked";
}

impl Settings<Http> for UploadProgress {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const METRICS: &'static [Metric] = &[Metric {
        name: "upload_progress_uploads",
        kind: MetricKind::Gauge,
        labels: &["zone"],
        doc: "Uploads in a zone of upload_progress, under way or over and not forgotten.",
        read: |scrape, out| zones::values::<UploadZone>(scrape, out, |zone| zone.zone().entries.value()),
    }];

    const VARIABLES: &'static [VarDef] = output::VARIABLES;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("upload_progress", "zone size", HTTP, Args::exact(2))
            .doc("Declares a zone of this size for the progress of uploads.")
            .set(|raw, node, _| {
                let [name, size] = node.words()?;
                raw.zones.push((ZoneParameter::of_words(node, name, size)?, node.span));
                Ok(())
            }),
        record::new("track_uploads", "zone timeout", LOCATION, Args::exact(2))
            .doc(
                "Tracks POST and PUT requests with an identifier in a zone. Their end is remembered for this time.",
            )
            .set(|raw, node, _| raw.track.set_with(node, read_tracking)),
        record::new("report_uploads", "zone", LOCATION, Args::exact(1))
            .doc("Returns the state of the upload with the identifier of the request.")
            .set(|raw, node, _| raw.report.set_bytes(node)),
        record::new("upload_progress_header", "name", ALL, Args::exact(1))
            .default(HEADER)
            .doc("Header field with the identifier of an upload, and argument of the same name if there is no field.")
            .set(|raw, node, _| raw.header.set_with(node, read_header)),
        record::new("upload_progress_content_type", "type", ALL, Args::exact(1))
            .default("text/javascript")
            .doc("Media type of a report.")
            .set(|raw, node, _| raw.content_type.set_bytes(node)),
        record::new("upload_progress_jsonp_parameter", "name", ALL, Args::exact(1))
            .default(CALLBACK)
            .doc("Argument with the function that is called with a report: letters, digits, dots, _ and $.")
            .set(|raw, node, _| raw.callback.set_bytes(node)),
        record::new("upload_progress_java_output", "", ALL, Args::NONE)
            .doc("Makes reports JavaScript, as they are without a directive.")
            .set(|raw, _, _| raw.templates.begin(OutputFormat::Java)),
        record::new("upload_progress_json_output", "", ALL, Args::NONE)
            .doc("Makes reports JSON.")
            .set(|raw, _, _| raw.templates.begin(OutputFormat::Json)),
        record::new("upload_progress_jsonp_output", "", ALL, Args::NONE)
            .doc("Makes reports calls of a function with JSON.")
            .set(|raw, _, _| raw.templates.begin(OutputFormat::Jsonp)),
        record::new("upload_progress_template", "starting | uploading | error | done template", ALL, Args::exact(2))
            .doc("Makes the report of one state a text with variables.")
            .set(|raw, node, _| raw.templates.add(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let zones = match outer {
            Some(outer) => outer.zones.clone(),
            None => Arc::new(declare(raw.zones, cx)?),
        };
        let track_span = raw.track.span();
        let track = match (raw.track.take(), track_span) {
            (Some((name, timeout)), Some(span)) => {
                Some(Tracking { zone: find(&zones, &name, span, cx)?, timeout })
            }
            _ => outer.and_then(|outer| outer.track.clone()),
        };
        let report_span = raw.report.span();
        let report = match (raw.report.take(), report_span) {
            (Some(name), Some(span)) => Some(find(&zones, &name, span, cx)?),
            _ => outer.filter(|_| cx.block.is_nameless()).and_then(|outer| outer.report.clone()),
        };
        let callback = raw.callback.take().map(Arc::from);
        Ok(Self {
            zones,
            track,
            report,
            header: match raw.header.take() {
                Some(header) => header.into(),
                None => outer.map_or_else(|| HEADER.into(), |outer| outer.header.clone()),
            },
            callback: callback.unwrap_or_else(|| match outer {
                Some(outer) => outer.callback.clone(),
                None => CALLBACK.as_bytes().into(),
            }),
            output: output::resolve(
                raw.templates,
                raw.content_type.take(),
                outer.map(|outer| &outer.output),
                cx,
            )?,
        })
    }

    fn are_shared(&self) -> bool {
        self.report.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.report.is_some() {
            plan.set_content(Report(self.clone()));
        }
        if self.track.is_some() {
            plan.add(Phase::Preaccess, Track(self.clone()));
            plan.add_log(self.clone());
        }
    }
}

fn read_tracking(node: &Node) -> Result<(Box<[u8]>, Duration), ConfError> {
    let [zone, timeout] = node.words()?;
    let parsed = timeout.sec();
    let invalid = || node.fail(format!("invalid timeout value \"{timeout}\"")).at(timeout.span);
    Ok((zone.bytes.clone(), parsed.ok_or_else(invalid)?))
}

/// A name of a header field.
fn read_header(node: &Node) -> Result<Box<str>, ConfError> {
    let word = node.arg(0)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match word.as_str() {
        Some(name) if !name.is_empty() && name.bytes().all(is_plain) => Ok(name.into()),
        _ => Err(node.invalid_value(word)),
    }
}

/// Takes the zones of a configuration into use.
fn declare(
    raw: Vec<(ZoneParameter, Span)>,
    cx: &mut Resolve<'_>,
) -> Result<HashMap<Box<[u8]>, Arc<UploadZone>>, ConfError> {
    let mut zones = HashMap::new();
    for (ZoneParameter { name, size }, span) in raw {
        zones::claim(cx, &name, OWNER).map_err(|error| error.at(span))?;
        if zones.contains_key(&name) {
            return Err(ConfError::new(format!("duplicate zone \"{}\"", Text(&name))).at(span));
        }
        let fits = |upload_zone: &UploadZone| upload_zone.size() == size;
        let zone = cx.keep(&name, fits, || UploadZone::new(&name, size));
        zones.insert(name, zone);
    }
    Ok(zones)
}

fn find(
    zones: &HashMap<Box<[u8]>, Arc<UploadZone>>,
    name: &[u8],
    at: Span,
    cx: &mut Resolve<'_>,
) -> Result<Arc<UploadZone>, ConfError> {
    if let Some(zone) = zones.get(name) {
        return Ok(zone.clone());
    }
    zones::claim(cx, name, OWNER).map_err(|error| error.at(at))?;
    Err(zones::undeclared(name, at))
}

impl UploadProgress {
    /// Identifier of the upload that a request is, or asks about.
    fn id<'r>(&self, r: &'r Request) -> Option<&'r [u8]> {
        let id = r.head.field(&self.header);
        let id = id.or_else(|| target::arg(&r.uri.args, self.header.as_bytes()));
        id.filter(|id| !id.is_empty() && id.len() <= ID_MAX)
    }

    /// Identifier of an upload that is to be tracked.
    fn tracked_id<'r>(&self, r: &'r Request) -> Option<&'r [u8]> {
        let is_upload = matches!(r.method(), Method::Post | Method::Put) && !r.is_subrequest();
        is_upload.then(|| self.id(r)).flatten()
    }

    fn track(&self, r: &mut Request) {
        let Some(tracking) = &self.track else { return };
        // A request that goes on in another location is tracked already.
        if r.extensions.get::<TrackedUpload>().is_some() || !r.body.has_source() {
            return;
        }
        let Some(id) = self.tracked_id(r) else { return };
        let length = match r.head.framing() {
            Framing::Length(length) => length,
            Framing::Chunked | Framing::None => 0,
        };
        let progress = BodyProgress::default();
        match tracking.zone.begin(id, length, progress.clone()) {
            Ok(()) => {
                let upload =
                    TrackedUpload { tracking: tracking.clone(), id: id.into(), progress: progress.clone() };
                r.body.note_progress(progress);
                r.extensions.put(Rc::new(upload));
            }
            Err(error) => log_untracked(r, &tracking.zone, id, error),
        }
    }
}

fn log_untracked(r: &Request, zone: &UploadZone, id: &[u8], error: TrackError) {
    let name = zone.name();
    let id = Text(id);
    match error {
        TrackError::Known => r.log(
            Level::Info,
            format_args!("upload \"{id}\" is not tracked: another one has its identifier, zone \"{name}\""),
        ),
        TrackError::Full => r.log(
            Level::Alert,
            format_args!("upload \"{id}\" is not tracked: no memory in upload_progress zone \"{name}\""),
        ),
    }
}

impl TrackedUpload {
    fn end(&self, status: u16) {
        let Tracking { zone, timeout } = &self.tracking;
        zone.end(&self.id, &self.progress, status, *timeout);
    }
}

impl Drop for TrackedUpload {
    /// The log handler has ended it already, unless another location has answered.
    fn drop(&mut self) {
        self.end(0);
    }
}

/// Handler of the preaccess phase.
struct Track(Arc<UploadProgress>);

impl Handler for Track {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        self.0.track(r);
        Step::PASS
    }
}

impl LogHandler for UploadProgress {
    fn log(&self, r: &Request) {
        if r.is_subrequest() {
            return;
        }
        if let Some(upload) = r.extensions.get::<TrackedUpload>() {
            upload.end(r.response.status);
            return;
        }
        // A body that is too large is refused before it is tracked.
        let (Some(tracking), 400..) = (&self.track, r.response.status) else { return };
        if let Some(id) = self.tracked_id(r) {
            let progress = BodyProgress::default();
            if tracking.zone.begin(id, 0, progress.clone()).is_ok() {
                tracking.zone.end(id, &progress, r.response.status, tracking.timeout);
            }
        }
    }
}

/// Handler of the content phase.
struct Report(Arc<UploadProgress>);

impl Handler for Report {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let settings = &self.0;
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        let Some(zone) = &settings.report else { return Step::status(500) };
        let Some(id) = settings.id(r) else {
            r.log(Level::Info, format_args!("request for the progress of an upload without identifier"));
            return Step::status(400);
        };
        let state = zone.state(id);
        let callback = target::arg(&r.uri.args, &settings.callback).unwrap_or_default().into();
        r.extensions.put(Rc::new(UploadReport { state, callback }));
        let mut text = Vec::new();
        settings.output.template(state).eval(r, &mut text);
        r.response.status = 200;
        for (name, value) in [("Expires", "Thu, 01 Jan 1970 00:00:01 GMT"), ("Cache-Control", "no-cache")] {
            r.response.fields.append(name, value);
        }
        r.response.content_type = Bytes::copy_from_slice(&settings.output.content_type);
        Step::Now(Outcome::Respond(Body::Bytes(text.into())))
    }
}
