//! `mirror`: a copy of each request to other locations, whose responses are discarded (nginx: ngx_http_mirror_module).
//! Precontent phase.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_log::{Level, Text};
use tw_phases::background_subrequest::{self, Copied};
use tw_phases::subrequest::Refused;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Request, Uri};
use tw_request::request_body;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Copies as written.
#[derive(Default)]
pub(crate) struct Raw {
    to: Setting<RawUris>,
    request_body: Setting<bool>,
}

/// Destination of copies, as written.
enum RawUris {
    Nobody,
    These(Vec<Box<[u8]>>),
}

/// Copies of one block's requests.
pub(crate) struct Mirror {
    /// URIs; none for no copy.
    to: Arc<[Box<[u8]>]>,
    copied: Copied,
}

impl Settings<Http> for Mirror {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("mirror", "uri | off", ALL, Args::exact(1))
            .default("off")
            .since("1.13.4")
            .doc("A location that gets a copy of each request; what it answers is ignored. May be given several times.")
            .set(|raw, node, _| add(&mut raw.to, node)),
        record::flag("mirror_request_body", ALL)
            .default("on")
            .since("1.13.4")
            .doc("Includes the body of the request in mirrored requests; the body is read first.")
            .set(|raw, node, _| raw.request_body.set_flag(node)),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let to = match raw.to.take() {
            Some(RawUris::These(uris)) => uris.into(),
            Some(RawUris::Nobody) => [].into(),
            None => outer.map_or_else(|| [].into(), |o| o.to.clone()),
        };
        let outer = outer.map(|o| o.copied == Copied::Body);
        let copied = if raw.request_body.or(outer, true) { Copied::Body } else { Copied::Nothing };
        Ok(Self { to, copied })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.to.is_empty() {
            plan.add(Phase::Precontent, self.clone());
        }
    }
}

fn add(to: &mut Setting<RawUris>, node: &Node) -> Result<(), ConfError> {
    let uri = node.arg(0)?.bytes.clone();
    match (to.get_mut(), &*uri) {
        (None, b"off") => to.replace(node, RawUris::Nobody),
        (None, _) => to.replace(node, RawUris::These(vec![uri])),
        (Some(RawUris::These(uris)), other) if other != b"off" => uris.push(uri),
        (Some(_), _) => return Err(node.error("is duplicate")),
    }
    Ok(())
}

impl Handler for Mirror {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.is_subrequest() {
            return Step::PASS;
        }
        if self.copied == Copied::Body && r.body.is_pending() {
            return Step::Wait(Box::pin(async move {
                match request_body::read::read(r).await {
                    Ok(()) => self.copy(r),
                    Err(status) => Outcome::Status(status),
                }
            }));
        }
        Step::Now(self.copy(r))
    }
}

impl Mirror {
    fn copy(&self, r: &mut Request) -> Outcome {
        for path in self.to.iter() {
            let uri = Uri { path: path.to_vec(), args: r.uri.args.clone() };
            match background_subrequest::run(r, uri, self.copied) {
                Ok(()) | Err(Refused::Crowded) => {}
                Err(refused) => {
                    r.log(Level::Error, format_args!("{refused} while processing \"{}\"", Text(path)));
                    return Outcome::Status(500);
                }
            }
        }
        Outcome::Pass
    }
}
