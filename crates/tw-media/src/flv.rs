//! `flv`: Flash videos from an offset on, `?start=` (nginx: ngx_http_flv_module). Content phase, before other files.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::module::Settings;
use tw_disk::FileKind;
use tw_http::{Method, num, target};
use tw_module_support::file_response;
use tw_request::body::{Body, FileSpan};
use tw_request::files::OpenFile;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Ranges, Request};

/// Header of a video: signature, version 1, audio and video, length of the header, size of the tag before.
const HEADER: &[u8] = b"FLV\x01\x05\x00\x00\x00\x09\x00\x00\x00\x00";

/// `flv` as written.
#[derive(Default)]
pub struct Raw {
    on: Setting<()>,
}

/// `flv` of one location; only the blocks in it that are no locations inherit it.
pub struct Flv {
    is_on: bool,
}

impl Settings<Http> for Flv {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("flv", "", LOCATION, Args::NONE)
        .doc("Sends Flash videos from the byte on that the argument start names.")
        .set(|raw, node, _| {
            raw.on.replace(node, ());
            Ok(())
        })];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { is_on: raw.on.is_set() || cx.block.is_nameless() && outer.is_some_and(|o| o.is_on) })
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

impl Handler for Flv {
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
        file_response::open(r, answer)
    }
}

fn answer(r: &mut Request, file: &Rc<OpenFile>) -> Outcome {
    if file.meta().kind != FileKind::File {
        return Outcome::Pass;
    }
    let size = file.meta().size;
    let start = target::arg(&r.uri.args, b"start").and_then(num::parse).filter(|start| *start < size);
    let body = match start {
        None | Some(0) => file_response::content(r, file),
        Some(offset) => Body::Parts(
            [
                Body::Bytes(Bytes::from_static(HEADER)),
                Body::File(FileSpan { file: file.clone(), offset, len: size - offset }),
            ]
            .into(),
        ),
    };
    file_response::describe(r, file, body.len().unwrap_or(size));
    r.state.ranges = Ranges::Allowed;
    Outcome::Respond(body)
}
