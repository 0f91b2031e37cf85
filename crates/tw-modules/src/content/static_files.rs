//! Answers with files (nginx: ngx_http_static_module). Content phase, last: handles what no other handler took.

use std::rc::Rc;
use std::sync::Arc;

use tw_conf::{ConfError, Directive};
use tw_core::module::Settings;
use tw_disk::FileKind;
use tw_http::Method;
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_phases::error_response;
use tw_request::files::OpenFile;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

/// There is nothing to set: every location can serve files.
pub(crate) struct Static;

impl Settings<Http> for Static {
    type Raw = ();
    const DIRECTIVES: &'static [Directive<()>] = &[];

    fn resolve((): (), _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self)
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        plan.add(Phase::Content, self.clone());
    }
}

impl Handler for Static {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head | Method::Post) {
            return Step::status(405);
        }
        if r.uri.path.last() == Some(&b'/') {
            return Step::PASS;
        }
        file_response::open(r, answer)
    }
}

fn answer(r: &mut Request, file: &Rc<OpenFile>) -> Outcome {
    let meta = file.meta();
    match meta.kind {
        FileKind::File => {}
        FileKind::Directory => return error_response::add_slash(r),
        FileKind::Symlink | FileKind::Other => {
            let mut path = Vec::new();
            let path = r.filename(&mut path);
            r.log(Level::Crit, format_args!("\"{}\" is not a regular file", Text(path.to_bytes())));
            return Outcome::Status(404);
        }
    }
    if r.method() == Method::Post {
        return Outcome::Status(405);
    }
    file_response::whole(r, file)
}
