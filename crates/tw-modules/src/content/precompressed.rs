//! `brotli_static`, `zstd_static`, `gzip_static`: answers with a file that was compressed before, `FILE.gz` instead of
//! `FILE` (nginx: ngx_http_gzip_static_module and others). Content phase, before `static`.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_disk::{DiskError, Errno, FileKind, Now, Op};
use tw_http::{HeaderName, Method};
use tw_log::{Level, Text};
use tw_module_support::file_response;
use tw_phases::content_coding::{is_accepted, is_gzip_allowed};
use tw_request::files::{self, OpenFile};
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

/// A content coding whose files may lie beside the plain ones.
pub(crate) trait StaticCoding: Send + Sync + 'static {
    /// The directive.
    const DIRECTIVE: &'static str;
    /// Documentation of the directive, in one line.
    const DOC: &'static str;
    /// Suffix of the name of a compressed file.
    const SUFFIX: &'static str;
    /// The word of `Content-Encoding`.
    const NAME: &'static str;
    /// Returns `true` if the client accepts the coding.
    fn is_allowed(r: &Request) -> bool;
}

/// `gzip_static`
pub(crate) struct GzipStatic;
/// `brotli_static`
pub(crate) struct BrotliStatic;
/// `zstd_static`
pub(crate) struct ZstdStatic;

impl StaticCoding for GzipStatic {
    const DIRECTIVE: &'static str = "gzip_static";
    const DOC: &'static str = "Answers with FILE.gz instead of FILE if the client accepts gzip, or always.";
    const SUFFIX: &'static str = ".gz";
    const NAME: &'static str = "gzip";

    fn is_allowed(r: &Request) -> bool {
        is_gzip_allowed(r)
    }
}

impl StaticCoding for BrotliStatic {
    const DIRECTIVE: &'static str = "brotli_static";
    const DOC: &'static str = "Answers with FILE.br instead of FILE if the client accepts brotli, or always.";
    const SUFFIX: &'static str = ".br";
    const NAME: &'static str = "br";

    fn is_allowed(r: &Request) -> bool {
        is_accepted(r, b"br")
    }
}

impl StaticCoding for ZstdStatic {
    const DIRECTIVE: &'static str = "zstd_static";
    const DOC: &'static str = "Answers with FILE.zst instead of FILE if the client accepts zstd, or always.";
    const SUFFIX: &'static str = ".zst";
    const NAME: &'static str = "zstd";

    fn is_allowed(r: &Request) -> bool {
        is_accepted(r, b"zstd")
    }
}

/// The directive as written.
#[derive(Default)]
pub(crate) struct Raw {
    mode: Setting<Mode>,
}

/// Clients that get compressed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// None.
    Off,
    /// Clients that accept them.
    On,
    /// All clients.
    Always,
}

/// The directive at one location.
pub(crate) struct Precompressed<C> {
    mode: Mode,
    coding: PhantomData<C>,
}

impl<C: StaticCoding> Settings<Http> for Precompressed<C> {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new(C::DIRECTIVE, "on | off | always", HTTP | SERVER | LOCATION, Args::exact(1))
            .default("off")
            .doc(C::DOC)
            .set(|raw, node, _| {
                let modes = [("off", Mode::Off), ("on", Mode::On), ("always", Mode::Always)];
                raw.mode.set_one_of(node, &modes)
            })];

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self { mode: raw.mode.or(outer.map(|o| o.mode), Mode::Off), coding: PhantomData })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.mode != Mode::Off {
            plan.add(Phase::Content, self.clone());
        }
    }
}

impl<C: StaticCoding> Handler for Precompressed<C> {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) || r.uri.path.last() == Some(&b'/') {
            return Step::PASS;
        }
        let is_wanted = self.mode == Mode::Always || C::is_allowed(r);
        // With `gzip_vary`, clients that get the plain file also need `Vary` if there is a compressed one.
        if !is_wanted && !r.plan().core.compression.vary {
            return Step::PASS;
        }
        let event_loop = r.client().event_loop.clone();
        let mut buf = event_loop.buffers.path.take();
        buf.clear();
        r.append_filename(&r.uri.path, &mut buf);
        buf.extend_from_slice(C::SUFFIX.as_bytes());
        buf.push(0);
        // An empty name, which no file has, should a NUL be in it.
        let path = CStr::from_bytes_with_nul(&buf).unwrap_or_default();
        let opened = files::open_now(r, path);
        let step = match opened {
            Now::Ready(opened) => {
                let opened = opened.map_err(|errno| Op::Open.failed(errno));
                Step::Now(self.answer(r, path, opened, is_wanted))
            }
            Now::Cold => {
                let path = CString::from(path);
                Step::Wait(Box::pin(async move {
                    let opened = files::open(r, &path).await;
                    self.answer(r, &path, opened, is_wanted)
                }))
            }
        };
        event_loop.buffers.path.set(buf);
        step
    }
}

impl<C: StaticCoding> Precompressed<C> {
    fn answer(
        &self,
        r: &mut Request,
        path: &CStr,
        opened: Result<Rc<OpenFile>, DiskError>,
        is_wanted: bool,
    ) -> Outcome {
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.is_absent() => return Outcome::Pass,
            // The plain file is as good.
            Err(error) => {
                let level = match error.errno() {
                    Some(Errno::ACCESS | Errno::LOOP | Errno::MLINK) | None => Level::Error,
                    Some(_) => Level::Crit,
                };
                r.log(level, format_args!("{}", error.on(path)));
                return Outcome::Pass;
            }
        };
        if self.mode == Mode::On {
            r.response.varies_by_coding = true;
        }
        match file.meta().kind {
            _ if !is_wanted => return Outcome::Pass,
            FileKind::File => {}
            FileKind::Directory => return Outcome::Pass,
            FileKind::Symlink | FileKind::Other => {
                r.log(Level::Crit, format_args!("\"{}\" is not a regular file", Text(path.to_bytes())));
                return Outcome::Status(404);
            }
        }
        r.response.fields.set(HeaderName::ContentEncoding, C::NAME);
        file_response::whole(r, &file)
    }
}
