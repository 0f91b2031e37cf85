//! `empty_gif`: answers with a transparent picture of one pixel (nginx: ngx_http_empty_gif_module). Content phase.

use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_core::module::Settings;
use tw_http::Method;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

/// GIF 89a of one transparent pixel, byte for byte nginx's: caches may hold it.
static GIF: [u8; 43] = [
    b'G', b'I', b'F', b'8', b'9', b'a', // signature
    1, 0, 1, 0, 0x80, 1, 0, // screen of 1×1, two colours, the second is the background
    0, 0, 0, 0xff, 0xff, 0xff, // black, white
    0x21, 0xf9, 4, 1, 0, 0, 1, 0, // graphic control: the second colour is transparent
    0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0, // image of 1×1
    2, 2, 0x4c, 1, 0,    // its one pixel
    0x3b, // end
];

/// Time of the last change, the same as in nginx, in seconds since 1970.
const LAST_MODIFIED: i64 = 23_349_600;

/// `empty_gif` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<()>,
}

/// `empty_gif` of one location; only its `if` blocks inherit it.
pub(crate) struct EmptyGif {
    on: bool,
}

impl Settings<Http> for EmptyGif {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new("empty_gif", "", LOCATION, Args::NONE)
        .doc("Answers with a transparent GIF of one pixel.")
        .set(|raw, node, _| {
            raw.on.replace(node, ());
            Ok(())
        })];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { on: raw.on.is_set() || cx.block.is_nameless() && outer.is_some_and(|o| o.on) })
    }

    fn are_shared(&self) -> bool {
        !self.on
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.on {
            plan.set_content(self.clone());
        }
    }
}

impl Handler for EmptyGif {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        r.response.status = 200;
        r.response.content_type = Bytes::from_static(b"image/gif");
        r.response.last_modified = Some(LAST_MODIFIED);
        Step::Now(Outcome::Respond(Body::Bytes(Bytes::from_static(&GIF))))
    }
}
