//! `try_files`: serves the first file that exists (nginx: ngx_http_try_files_module). Precontent phase.
//!
//! The file found becomes the URI of the request, which stays in its location; the last argument is not looked up, but
//! an internal redirect.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_disk::{DiskError, FileKind, FileMeta, Now, Op};
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_request::config::location::RootKind;
use tw_request::files;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{AliasEnd, Request};
use tw_request::vars::Template;

/// Highest code that may be returned.
const CODE_MAX: u64 = 999;

/// `try_files` as written.
#[derive(Default)]
pub(crate) struct Raw {
    words: Setting<Vec<Word>>,
}

/// `try_files` of one block; it is not inherited.
pub(crate) struct TryFiles {
    plan: Option<Tries>,
}

/// Names to try, and the fallback.
struct Tries {
    tries: Box<[Try]>,
    last: Last,
}

/// One argument.
struct Try {
    /// Text added to the root, without a slash at the end.
    name: Template,
    required_kind: RequiredKind,
}

/// Kind of file that a name has to lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequiredKind {
    Directory,
    /// Anything but a directory.
    File,
}

/// The last argument.
enum Last {
    /// `=code`
    Code(u16),
    /// A URI with arguments, or `@name`.
    Uri(Template),
}

impl Settings<Http> for TryFiles {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("try_files", "file … uri | file … =code", SERVER | LOCATION, Args::at_least(2))
            .doc("Answers with the first file (or directory, with a slash at the end) that exists, else redirects internally.")
            .set(|raw, node, _| {
                if let Some(last) = node.args.last()
                    && last.bytes.starts_with(b"=")
                    && code_of(last).is_none()
                {
                    return Err(node.fail(format!("invalid code \"{last}\"")));
                }
                raw.words.set_once(node, node.args.clone())
            })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let words = raw.words.take().unwrap_or_default();
        let Some((last, words)) = words.split_last() else { return Ok(Self { plan: None }) };
        let tries = words.iter().map(|word| Try::compile(word, cx)).collect::<Result<_, _>>()?;
        let last = match code_of(last) {
            Some(code) => Last::Code(code),
            None => {
                cx.block.use_named_location(&last.bytes, last.span);
                Last::Uri(cx.template(last)?)
            }
        };
        Ok(Self { plan: Some(Tries { tries, last }) })
    }

    fn are_shared(&self) -> bool {
        self.plan.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.plan.is_some() {
            plan.add(Phase::Precontent, self.clone());
            plan.look_for_files();
        }
    }
}

fn code_of(word: &Word) -> Option<u16> {
    let code = tw_conf::units::number(word.bytes.strip_prefix(b"=")?)?;
    (1..=CODE_MAX).contains(&code).then_some(code as u16)
}

impl Try {
    fn compile(word: &Word, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let (name, required_kind) = match word.bytes.strip_suffix(b"/") {
            Some(name) => (name, RequiredKind::Directory),
            None => (&*word.bytes, RequiredKind::File),
        };
        Ok(Self { name: cx.template_text(name, Some(word.span))?, required_kind })
    }
}

impl Handler for TryFiles {
    fn only_looks(&self) -> bool {
        true
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        let Some(plan) = &self.plan else { return Vec::new() };
        let mut path = Vec::new();
        let mut tried: Vec<String> = Vec::new();
        for item in &plan.tries {
            push_path(r, &item.name, &mut path);
            let slash = if item.required_kind == RequiredKind::Directory { "/" } else { "" };
            tried.push(format!("{}{slash}", Text(&path)));
        }
        let last = match &plan.last {
            Last::Code(code) => code.to_string(),
            Last::Uri(uri) => Text(&uri.value(r)).to_string(),
        };
        vec![("try_files", format!("{}, else {last}", tried.join(", ")))]
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(plan) = &self.plan else { return Step::PASS };
        let event_loop = r.client().event_loop.clone();
        let mut path = event_loop.buffers.path.take();
        let mut cold = None;
        let mut found_outcome = None;
        for (at, item) in plan.tries.iter().enumerate() {
            let name = push_path(r, &item.name, &mut path);
            let file = terminated(&mut path);
            let Now::Ready(meta) = files::stat_now(r, file) else {
                cold = Some(at);
                break;
            };
            found_outcome = item.outcome_for(r, file, meta.map_err(|e| Op::Stat.failed(e)), name);
            if found_outcome.is_some() {
                break;
            }
        }
        event_loop.buffers.path.set(path);
        match (cold, found_outcome) {
            (Some(at), _) => Step::Wait(Box::pin(plan.wait(r, at))),
            (None, Some(outcome)) => Step::Now(outcome),
            (None, None) => Step::Now(plan.last(r)),
        }
    }
}

impl Tries {
    /// Tries the names from `first` on, waiting for the disk.
    async fn wait(&self, r: &mut Request, first: usize) -> Outcome {
        let mut path = Vec::new();
        for item in &self.tries[first..] {
            let name = push_path(r, &item.name, &mut path);
            let file = CString::from(terminated(&mut path));
            let meta = files::stat(r, file.clone()).await;
            if let Some(outcome) = item.outcome_for(r, &file, meta, name) {
                return outcome;
            }
        }
        self.last(r)
    }

    /// Uses the fallback: no file was found.
    fn last(&self, r: &Request) -> Outcome {
        let text = match &self.last {
            // DIFF(nginx): a code below 300 is answered; there the connection closes without a word.
            Last::Code(code) => return Outcome::Status(*code),
            Last::Uri(text) => text,
        };
        let mut path = Vec::new();
        let start = push_path(r, text, &mut path);
        let uri = path.split_off(start);
        if uri.starts_with(b"@") {
            return Outcome::Named(uri.into());
        }
        match uri.iter().position(|b| *b == b'?') {
            Some(at) => Outcome::Redirect { path: uri[..at].to_vec(), args: uri[at + 1..].to_vec() },
            None => Outcome::Redirect { path: uri, args: Vec::new() },
        }
    }
}

impl Try {
    /// Outcome for `file`, whose part from `name` on is the argument; `None` to try the next.
    fn outcome_for(
        &self,
        r: &mut Request,
        file: &CStr,
        meta: Result<FileMeta, DiskError>,
        name: usize,
    ) -> Option<Outcome> {
        match meta {
            Ok(meta)
                if (meta.kind == FileKind::Directory) == (self.required_kind == RequiredKind::Directory) =>
            {
                self.take(r, file.to_bytes().get(name..).unwrap_or_default());
                Some(Outcome::Pass)
            }
            Ok(_) => None,
            Err(error) if error.is_absent() => None,
            Err(error @ DiskError::Os { .. }) => {
                r.log(Level::Crit, format_args!("{}", error.on(file)));
                None
            }
            Err(error) => Some(file_response::refuse(r, file, &error)),
        }
    }

    /// Makes the file found the URI.
    fn take(&self, r: &mut Request, name: &[u8]) {
        match r.plan().core.root.kind {
            RootKind::Root => r.uri.path.clear(),
            RootKind::Alias(prefix) => r.uri.path.truncate(prefix),
            RootKind::Whole if self.required_kind == RequiredKind::Directory => return,
            RootKind::Whole => {
                r.state.alias_end = AliasEnd::Uri;
                r.uri.path.clear();
            }
        }
        r.uri.path.extend_from_slice(name);
    }
}

/// Writes the root and then `text` into `path`; returns where `text` begins.
fn push_path(r: &Request, text: &Template, path: &mut Vec<u8>) -> usize {
    let root = &r.plan().core.root;
    path.clear();
    root.path.eval(r, path);
    let start = path.len();
    text.eval(r, path);
    // In a location with `alias`, what variables make of the prefix of the location is taken off again: `$uri` stands for
    // the part of the URI that `alias` does not replace. So does it, as in nginx, with the last argument.
    if let RootKind::Alias(prefix) = root.kind
        && text.constant().is_none()
        && let Some(prefix) = r.uri.path.get(..prefix)
        && path[start..].starts_with(prefix)
    {
        path.drain(start..start + prefix.len());
    }
    start
}

/// Ends `path` with a NUL. Returns an empty name, which no file has, should a NUL be in it.
fn terminated(path: &mut Vec<u8>) -> &CStr {
    path.push(0);
    CStr::from_bytes_with_nul(path).unwrap_or_default()
}
