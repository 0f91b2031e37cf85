//! `index`: the index file of a directory (nginx: ngx_http_index_module). Content phase.
//!
//! The search names one path at a time and gets its metadata, so it is the same code with and without waiting for the
//! disk.

use std::ffi::{CStr, CString};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_disk::{DiskError, Errno, FileKind, FileMeta, Now, Op};
use tw_http::Method;
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_request::files;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;

/// Index files as written.
#[derive(Default)]
pub(crate) struct Raw {
    index: Setting<Vec<Word>>,
}

/// Index files in the order they are tried.
pub(crate) struct Index {
    names: Arc<[Template]>,
}

impl Settings<Http> for Index {
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

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        plan.add(Phase::Content, self.clone());
    }
}

impl Handler for Index {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.uri.path.last() != Some(&b'/')
            || !matches!(r.method(), Method::Get | Method::Head | Method::Post)
        {
            return Step::PASS;
        }
        let event_loop = r.client().event_loop.clone();
        let mut search = Search::new(&self.names, event_loop.buffers.path.take());
        let mut flow = search.next(r);
        while flow.is_continue() {
            flow = match files::stat_now(r, search.wanted_path()) {
                Now::Ready(meta) => search.take_result(r, meta.map_err(|e| Op::Stat.failed(e))),
                Now::Cold => return Step::Wait(Box::pin(search.wait(r))),
            };
        }
        event_loop.buffers.path.set(search.path);
        Step::Now(outcome(flow))
    }
}

fn outcome(flow: ControlFlow<Outcome>) -> Outcome {
    flow.break_value().unwrap_or(Outcome::Pass)
}

/// A search for the first index file that exists.
struct Search<'a> {
    /// Names still to be tried.
    names: &'a [Template],
    /// The path of the name that is tried, NUL-terminated.
    path: Vec<u8>,
    /// Offset of the name in the path.
    name: usize,
    directory: Directory,
}

/// State of the directory itself.
enum Directory {
    /// Not looked at before the first index file is missing.
    Unknown,
    /// Being looked at.
    Wanted(CString),
    Exists,
}

impl<'a> Search<'a> {
    fn new(names: &'a [Template], path: Vec<u8>) -> Self {
        Self { names, path, name: 0, directory: Directory::Unknown }
    }

    /// The path it has to know about.
    fn wanted_path(&self) -> &CStr {
        match &self.directory {
            Directory::Wanted(path) => path,
            Directory::Unknown | Directory::Exists => self.file(),
        }
    }

    /// The path of the index file; empty, which no file has, should a NUL be in it.
    fn file(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.path).unwrap_or_default()
    }

    async fn wait(mut self, r: &mut Request) -> Outcome {
        loop {
            let meta = files::stat(r, self.wanted_path().to_owned()).await;
            let flow = self.take_result(r, meta);
            if flow.is_break() {
                return outcome(flow);
            }
        }
    }

    /// Goes to the next name.
    fn next(&mut self, r: &mut Request) -> ControlFlow<Outcome> {
        let Some((name, rest)) = self.names.split_first() else { return Break(Outcome::Pass) };
        self.names = rest;
        self.path.clear();
        r.append_filename(&r.uri.path, &mut self.path);
        self.name = self.path.len();
        name.eval(r, &mut self.path);
        let name = &self.path[self.name..];
        if name.starts_with(b"/") {
            return Break(Outcome::Redirect { path: name.to_vec(), args: std::mem::take(&mut r.uri.args) });
        }
        self.path.push(0);
        Continue(())
    }

    /// Takes the result for the path that the search asked for.
    fn take_result(&mut self, r: &mut Request, meta: Result<FileMeta, DiskError>) -> ControlFlow<Outcome> {
        if let Directory::Wanted(path) = &self.directory {
            self.check_directory(r, path, meta)?;
            self.directory = Directory::Exists;
            return self.next(r);
        }
        let error = match meta {
            Ok(_) => {
                // The request starts again with them: the old ones are not needed.
                let mut path = std::mem::take(&mut r.uri.path);
                let args = std::mem::take(&mut r.uri.args);
                path.extend_from_slice(self.file().to_bytes().get(self.name..).unwrap_or_default());
                return Break(Outcome::Redirect { path, args });
            }
            Err(error) => error,
        };
        match error.errno() {
            Some(Errno::NOENT) if matches!(self.directory, Directory::Unknown) => {
                self.directory = Directory::Wanted(self.directory_path());
                Continue(())
            }
            Some(Errno::NOENT) => self.next(r),
            Some(errno @ (Errno::NOTDIR | Errno::NAMETOOLONG | Errno::ACCESS)) => {
                Break(self.not_found(r, errno))
            }
            _ => Break(file_response::refuse(r, self.file(), &error)),
        }
    }

    fn check_directory(
        &self,
        r: &mut Request,
        path: &CStr,
        file_meta: Result<FileMeta, DiskError>,
    ) -> ControlFlow<Outcome> {
        match file_meta {
            Ok(meta) if meta.kind == FileKind::Directory => Continue(()),
            Ok(_) => {
                r.log(Level::Alert, format_args!("\"{}\" is not a directory", Text(path.to_bytes())));
                Break(Outcome::Status(500))
            }
            Err(error) => match error.errno() {
                Some(Errno::NOENT) => Break(self.not_found(r, Errno::NOENT)),
                // The file in it was looked for without this error: the directory may be searched, and that is enough.
                Some(Errno::ACCESS) => Continue(()),
                _ => Break(file_response::refuse(r, path, &error)),
            },
        }
    }

    fn not_found(&self, r: &Request, errno: Errno) -> Outcome {
        let shown = Text(self.file().to_bytes());
        let text = tw_base::Errno::from(errno);
        if errno == Errno::ACCESS {
            r.log(Level::Error, format_args!("\"{shown}\" is forbidden ({text})"));
            return Outcome::Status(403);
        }
        if r.plan().core.log_not_found {
            r.log(Level::Error, format_args!("\"{shown}\" is not found ({text})"));
        }
        Outcome::Status(404)
    }

    /// The path in front of the name, without its slash unless that is all of it.
    fn directory_path(&self) -> CString {
        let path = match self.path.get(..self.name).unwrap_or_default() {
            [shorter @ .., b'/'] if !shorter.is_empty() => shorter,
            path => path,
        };
        CString::new(path).unwrap_or_default()
    }
}
