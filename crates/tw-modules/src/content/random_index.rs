//! `random_index`: answers for a directory with one of its files, chosen at random (nginx:
//! ngx_http_random_index_module). Content phase.

use std::ffi::CString;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive, LOCATION, Setting, record};
use tw_core::module::Settings;
use tw_disk::{FileKind, JobSource};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::random_id::random_id;
use tw_request::request::Request;

/// `random_index` as written.
#[derive(Default)]
pub(crate) struct Raw {
    on: Setting<bool>,
}

/// `random_index` of one location.
pub(crate) struct RandomIndex {
    on: bool,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Entries of a directory that one is chosen from.
    const ENTRIES_MAX: usize = 100_000, count, "the others are never chosen, and the error log says so";
}

impl Settings<Http> for RandomIndex {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::flag("random_index", LOCATION)
        .default("off")
        .doc("Answers a request for a directory with one of its files, chosen at random.")
        .set(|raw, node, _| raw.on.set_flag(node))];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { on: raw.on.or(outer.map(|o| o.on), false) })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.on {
            plan.add(Phase::Content, self.clone());
        }
    }
}

impl Handler for RandomIndex {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let suits = matches!(r.method(), Method::Get | Method::Head | Method::Post);
        if r.uri.path.last() != Some(&b'/') || !suits {
            return Step::PASS;
        }
        Step::Wait(Box::pin(choose(r)))
    }
}

async fn choose(r: &mut Request) -> Outcome {
    let mut path = Vec::new();
    let path = r.filename(&mut path).to_bytes();
    let path = match path {
        [shorter @ .., b'/'] if !shorter.is_empty() => shorter,
        path => path,
    };
    let path = CString::new(path).unwrap_or_default();
    let Some(disk) = r.disk().cloned() else { return Outcome::Status(500) };
    r.costs.account.source = JobSource::of(path.to_bytes());
    let event_loop = r.client().event_loop.clone();
    let list = async || disk.list(&mut r.costs.account, &path, ENTRIES_MAX).await;
    let listing = match event_loop.retry_with_descriptor(list).await {
        Ok(listing) => listing,
        Err(error) => return file_response::refuse(r, &path, &error),
    };
    if listing.truncated {
        let path = Text(path.to_bytes());
        r.log(
            Level::Warn,
            format_args!("\"{path}\" has more than {ENTRIES_MAX} entries, the others are never chosen"),
        );
    }
    let names = listing.entries.iter().filter(|entry| entry.meta.kind == FileKind::File);
    let mut names: Vec<_> =
        names.map(|entry| &entry.name).filter(|name| !name.to_bytes().starts_with(b".")).collect();
    if names.is_empty() {
        return Outcome::Pass;
    }
    let [.., last] = random_id().map(u64::from);
    let random = random_id().iter().take(7).fold(last, |sum, byte| sum << 8 | u64::from(*byte));
    let name = names.swap_remove((random % names.len() as u64) as usize);
    let mut uri = r.uri.path.clone();
    uri.extend_from_slice(name.to_bytes());
    Outcome::Redirect { path: uri, args: r.uri.args.clone() }
}
