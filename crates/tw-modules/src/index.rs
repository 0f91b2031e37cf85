//! `index`: the file that answers for a directory (nginx: ngx_http_index_module). Content phase.

use std::ffi::CString;
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_disk::{DiskError, Errno, Kind, Meta, Now, Op};
use tw_http::Method;
use tw_server::http::files;
use tw_server::http::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::module::Settings;
use tw_server::vars::Template;

use crate::static_files;

/// Index files as written.
#[derive(Default)]
pub(crate) struct Raw {
    index: Setting<Vec<Word>>,
}

/// Index files in the order they are tried.
pub(crate) struct Index {
    names: Arc<[Template]>,
}

impl Settings for Index {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("index", "file …", HTTP | SERVER | LOCATION, Args::at_least(1))
            .default("index.html")
            .doc("Files that answer for a URI with a slash at its end; the last may be an absolute URI.")
            .set(|raw, node, cx| {
                for (at, word) in node.args.iter().enumerate() {
                    if word.bytes.is_empty() {
                        return Err(node.fail("index \"\" in \"index\" directive is invalid"));
                    }
                    if word.bytes.starts_with(b"/") && at + 1 < node.args.len() {
                        cx.warn(word.span, "only the last index in \"index\" directive should be absolute");
                    }
                    raw.index.push(node, word.clone());
                }
                Ok(())
            })];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let names = match (raw.index.take(), outer) {
            (Some(words), _) => words.iter().map(|word| cx.template(word)).collect::<Result<_, _>>()?,
            (None, Some(outer)) => outer.names.clone(),
            (None, None) => [Template::text(b"index.html")].into(),
        };
        Ok(Self { names })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        plan.add(Phase::Content, self.clone());
    }
}

impl Handler for Index {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.uri.path.last() != Some(&b'/')
            || !matches!(r.method(), Method::Get | Method::Head | Method::Post)
        {
            return Step::PASS;
        }
        for (at, name) in self.names.iter().enumerate() {
            let uri = match self.candidate(r, name) {
                Candidate::Uri(uri) => uri,
                Candidate::Absolute(outcome) => return Step::Now(outcome),
            };
            let mut buf = Vec::new();
            let path = r.filename_of(&uri, &mut buf);
            match files::stat_now(r, path) {
                Now::Ready(found) => {
                    let path = CString::from(path);
                    if let Some(outcome) = verdict(r, uri, path, found.map_err(|e| Op::Open.failed(e))) {
                        return Step::Now(outcome);
                    }
                }
                Now::Cold => return Step::Wait(Box::pin(self.look(r, at))),
            }
        }
        Step::PASS
    }
}

/// What an index name stands for.
enum Candidate {
    /// A URI below the directory, to be looked at.
    Uri(Vec<u8>),
    /// An absolute URI: taken without looking.
    Absolute(Outcome),
}

impl Index {
    fn candidate(&self, r: &Request, name: &Template) -> Candidate {
        let name = name.value(r);
        if name.starts_with(b"/") {
            return Candidate::Absolute(Outcome::Redirect { path: name, args: r.uri.args.clone() });
        }
        Candidate::Uri([&r.uri.path, &*name].concat())
    }

    /// The same from the index `first` on, waiting for the disk.
    async fn look(&self, r: &mut Request, first: usize) -> Outcome {
        for name in &self.names[first..] {
            let uri = match self.candidate(r, name) {
                Candidate::Uri(uri) => uri,
                Candidate::Absolute(outcome) => return outcome,
            };
            let mut buf = Vec::new();
            let path = CString::from(r.filename_of(&uri, &mut buf));
            let found = files::stat(r, path.clone()).await;
            if let Some(outcome) = verdict(r, uri, path, found) {
                return outcome;
            }
        }
        Outcome::Pass
    }
}

/// What an index file leads to; `None` to try the next.
fn verdict(r: &mut Request, uri: Vec<u8>, path: CString, found: Result<Meta, DiskError>) -> Option<Outcome> {
    match found {
        Ok(meta) if meta.kind == Kind::Directory => None,
        Ok(_) => Some(Outcome::Redirect { path: uri, args: r.uri.args.clone() }),
        Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG)) => {
            None
        }
        Err(error) => Some(static_files::refuse(r, &path, &error)),
    }
}
