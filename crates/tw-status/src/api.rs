//! `api`: upstream groups, zones of `stream` and `mail`, caches and tables of keys as JSON, and changes of them (nginx:
//! ngx_http_api_module of its commercial edition). Content phase.
//!
//! ```text
//! /[VERSION/]{http,stream,mail}/upstreams/NAME/servers/ID
//!                                   GET     GET  GET, POST  GET, PATCH, DELETE
//! /[VERSION/]{stream,mail}/server_zones/NAME
//!                                     GET  GET
//! /[VERSION/]http/caches/NAME/purge
//!                     GET  GET  POST
//! /[VERSION/]{http,stream,mail}/keyvals/NAME
//!                                   GET  GET, POST, PATCH, DELETE
//! /openapi.json: description of all of them
//! ```
//! Paths, names of fields and codes of errors are nginx's. A change is made on a thread of the pool, because building a
//! new list of peers may take longer than a turn of the loop, and takes effect on all loops at once; with `state` the
//! response is sent after the file is written.

mod block;
mod body;
mod caches;
mod change;
mod keyvals;
mod response;
mod show;
mod zones;

use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, LOCATION, Setting, record};
use tw_connect::upstream_block::{Groups, configured_groups};
use tw_connect::{ConnectingProtocol, UpstreamGroup};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::Method;
use tw_mail::Mail;
use tw_module_support::cross_origin::is_cross_origin;
use tw_request::body::Body;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::route::Pattern;
use tw_request::vars::Template;
use tw_stream::Stream;

use block::{Block, SessionBlock};
use change::{GroupToChange, ServerChange};
use response::{ApiError, ApiFailure, ApiResponse};

/// Description of the API (OpenAPI 3.1). A test compares it with what is served.
const OPENAPI: &str = include_str!("api/openapi.json");

/// Versions of nginx's API that a path may name; the content is the same in all of them.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=9;

/// Permission to change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

/// `api` as written.
#[derive(Default)]
pub struct Raw {
    mode: Setting<Mode>,
}

/// The API of one location.
#[derive(Clone)]
pub struct Api {
    here: Option<ApiLocation>,
}

#[derive(Clone)]
struct ApiLocation {
    mode: Mode,
    /// The path of the location.
    prefix: Arc<[u8]>,
    upstreams: Arc<Groups<Http>>,
    request_id: Template,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use body::LIMITS;
}

impl Settings<Http> for Api {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("api", "[write=on|off]", LOCATION, Args::range(0, 1))
            .since("1.13.3")
            .doc("Shows groups of servers of http, stream and mail, zones of stream and mail, caches and tables of keyval_zone below this location as JSON; with write=on changes groups and tables, and purges caches.")
            .set(|raw, node, _| {
                let mode = match node.args.first().map(|word| (word, &*word.bytes)) {
                    None | Some((_, b"write=off")) => Mode::Read,
                    Some((_, b"write=on")) => Mode::Write,
                    Some((word, _)) => return Err(node.invalid_parameter(word)),
                };
                raw.mode.set_once(node, mode)
            })];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let Some(mode) = raw.mode.take() else {
            // A part of a location (`limit_except`) has the API of the whole.
            let here = outer.filter(|_| cx.block.is_nameless()).and_then(|outer| outer.here.clone());
            return Ok(Self { here });
        };
        let prefix = match cx.block.location() {
            Some(Pattern::Prefix { uri, .. } | Pattern::Exact(uri)) => (&**uri).into(),
            _ => {
                let message = "\"api\" cannot be used in a named location or in one of a regular expression or predicate";
                return Err(ConfError::new(message).hint("paths of the API begin where the location's ends"));
            }
        };
        let upstreams = cx.block.upstreams().clone();
        let request_id = cx.template_text(b"$request_id", None)?;
        Ok(Self { here: Some(ApiLocation { mode, prefix, upstreams, request_id }) })
    }

    fn are_shared(&self) -> bool {
        self.here.is_none()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if let Some(here) = &self.here {
            plan.add(Phase::Content, Arc::new(here.clone()));
        }
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        // A server that is added may have a name.
        if self.here.as_ref().is_some_and(|here| here.mode == Mode::Write) {
            tw_connect::resolving::reach(reach);
        }
    }
}

// DIFF(nginx): groups of `http`, `stream` and `mail`, those without `zone` too, zones of `stream` and `mail`, tables of `keyval_zone`,
// and caches, which can be purged; nothing else, and statistics are not reset.
/// Object that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint<'a> {
    Root,
    OpenApi,
    Contents(Block),
    Upstreams(Block),
    Upstream(Block, &'a str),
    Servers(Block, &'a str),
    Server(Block, &'a str, u32),
    ServerZones(SessionBlock),
    ServerZone(SessionBlock, &'a str),
    Caches,
    Cache(&'a str),
    Purge(&'a str),
    Keyvals(Block),
    Keyval(Block, &'a str),
}

impl<'a> Endpoint<'a> {
    /// Object that a path below the location names.
    fn of(path: &'a [u8]) -> Result<Self, ApiError> {
        let path = std::str::from_utf8(path).map_err(|_| ApiError::NO_PATH)?;
        let mut parts: Vec<_> = path.split('/').skip_while(|part| part.is_empty()).collect();
        if parts.last() == Some(&"") {
            parts.pop();
        }
        if let Some(first) = parts.first()
            && first.bytes().all(|byte| byte.is_ascii_digit())
        {
            if !first.parse().is_ok_and(|version| VERSIONS.contains(&version)) {
                return Err(ApiError::new(404, "UnknownVersion", "unknown version"));
            }
            parts.remove(0);
        }
        Ok(match &parts[..] {
            [] => Self::Root,
            ["openapi.json"] => Self::OpenApi,
            [block, rest @ ..] => Self::in_block(Block::of(block).ok_or(ApiError::NO_PATH)?, rest)?,
        })
    }

    /// Object in a block that the rest of a path names.
    fn in_block(block: Block, rest: &[&'a str]) -> Result<Self, ApiError> {
        Ok(match (block, rest) {
            (_, []) => Self::Contents(block),
            (Block::Http, ["caches"]) => Self::Caches,
            (Block::Http, ["caches", name]) => Self::Cache(name),
            (Block::Http, ["caches", name, "purge"]) => Self::Purge(name),
            (_, ["keyvals"]) => Self::Keyvals(block),
            (_, ["keyvals", name]) => Self::Keyval(block, name),
            (_, ["server_zones"]) => Self::ServerZones(block.of_sessions()?),
            (_, ["server_zones", name]) => Self::ServerZone(block.of_sessions()?, name),
            (_, ["upstreams", rest @ ..]) => Self::of_upstreams(block, rest)?,
            _ => return Err(ApiError::NO_PATH),
        })
    }

    /// Object that the rest of a path below `upstreams` names.
    fn of_upstreams(block: Block, rest: &[&'a str]) -> Result<Self, ApiError> {
        Ok(match rest {
            [] => Self::Upstreams(block),
            [name] => Self::Upstream(block, name),
            [name, "servers"] => Self::Servers(block, name),
            [name, "servers", id] => match id.parse() {
                Ok(id) => Self::Server(block, name, id),
                Err(_) => return Err(ApiError::new(400, "UpstreamBadServerId", "invalid server ID")),
            },
            _ => return Err(ApiError::NO_PATH),
        })
    }

    /// The methods that it has, for `Allow`.
    fn methods(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Self::Servers(..), Mode::Write) => "GET, HEAD, POST",
            (Self::Server(..), Mode::Write) => "GET, HEAD, PATCH, DELETE",
            (Self::Purge(_), Mode::Write) => "POST",
            (Self::Purge(_), Mode::Read) => "",
            (Self::Keyval(..), mode) => keyvals::methods(mode),
            _ => "GET, HEAD",
        }
    }
}

impl Handler for ApiLocation {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Wait(Box::pin(async {
            let reply = match self.respond(r).await {
                Ok(answer) => answer,
                Err(ApiFailure::Refusal(refusal)) => refusal.answer(&self.request_id(r)),
                Err(ApiFailure::Status(status)) => return Outcome::Status(status),
            };
            let ApiResponse { status, fields, json } = reply;
            r.response.status = status;
            r.response.fields.append("Cache-Control", "no-store");
            for (name, value) in fields {
                r.response.fields.append_copy(name, &value);
            }
            if json.is_empty() {
                return Outcome::Respond(Body::Empty);
            }
            r.response.content_type = Bytes::from_static(b"application/json");
            Outcome::Respond(Body::Bytes(json.into()))
        }))
    }
}

impl ApiLocation {
    async fn respond(&self, r: &mut Request) -> Result<ApiResponse, ApiFailure> {
        let uri = r.uri.path.to_vec();
        let path = uri.strip_prefix(&*self.prefix).ok_or(ApiError::NO_PATH)?;
        let endpoint = Endpoint::of(path)?;
        if !r.method().is_safe() && is_cross_origin(&r.head) {
            return Err(ApiError::CROSS_ORIGIN.into());
        }
        let (block, order) = match (r.method(), endpoint, self.mode) {
            (Method::Post, Endpoint::Purge(name), Mode::Write) => return caches::purge(r, name).await,
            (_, Endpoint::Keyval(block, name), mode) => {
                return keyvals::respond(r, block, name, mode).await;
            }
            (Method::Get | Method::Head, Endpoint::Keyvals(block), _) => return keyvals::all(r, block).await,
            (Method::Get | Method::Head, endpoint, _) if !matches!(endpoint, Endpoint::Purge(_)) => {
                return Ok(ApiResponse::ok(self.show(r, endpoint)?));
            }
            (Method::Post, Endpoint::Servers(block, name), Mode::Write) => (block, Order::Add(name)),
            (Method::Patch, Endpoint::Server(block, name, id), Mode::Write) => {
                (block, Order::Change(name, id))
            }
            (Method::Delete, Endpoint::Server(block, name, id), Mode::Write) => {
                (block, Order::Remove(name, id))
            }
            _ => return Err(ApiError::method(endpoint.methods(self.mode)).into()),
        };
        match block {
            Block::Http => order.run(r, block, Some(&*self.upstreams)).await,
            Block::Stream => {
                let groups = groups::<Stream>(r);
                order.run(r, block, groups.as_deref()).await
            }
            Block::Mail => {
                let groups = groups::<Mail>(r);
                order.run(r, block, groups.as_deref()).await
            }
        }
    }

    fn show(&self, r: &Request, endpoint: Endpoint<'_>) -> Result<Vec<u8>, ApiError> {
        Ok(match endpoint {
            Endpoint::Root => response::json(&Block::ALL.map(|(name, _)| name)),
            Endpoint::OpenApi => OPENAPI.into(),
            Endpoint::Contents(block) => response::json(&block.contents()),
            Endpoint::Caches => caches::all(r),
            Endpoint::Cache(name) => caches::cache(r, name)?,
            Endpoint::Purge(_) | Endpoint::Keyvals(_) | Endpoint::Keyval(..) => {
                return Err(ApiError::NO_PATH);
            }
            Endpoint::ServerZones(SessionBlock::Stream) => zones::all::<Stream>(r),
            Endpoint::ServerZones(SessionBlock::Mail) => zones::all::<Mail>(r),
            Endpoint::ServerZone(SessionBlock::Stream, name) => zones::zone::<Stream>(r, name)?,
            Endpoint::ServerZone(SessionBlock::Mail, name) => zones::zone::<Mail>(r, name)?,
            Endpoint::Upstreams(block)
            | Endpoint::Upstream(block, _)
            | Endpoint::Servers(block, _)
            | Endpoint::Server(block, ..) => match block {
                Block::Http => show_groups(Some(&*self.upstreams), endpoint)?,
                Block::Stream => show_groups(groups::<Stream>(r).as_deref(), endpoint)?,
                Block::Mail => show_groups(groups::<Mail>(r).as_deref(), endpoint)?,
            },
        })
    }

    fn request_id(&self, r: &Request) -> String {
        let mut id = Vec::new();
        self.request_id.eval(r, &mut id);
        String::from_utf8_lossy(&id).into_owned()
    }
}

/// Change of a group that a request asks for; its body is not read yet.
enum Order<'a> {
    Add(&'a str),
    Change(&'a str, u32),
    Remove(&'a str, u32),
}

impl Order<'_> {
    /// Carries it out in one of these groups.
    async fn run<P: ConnectingProtocol>(
        self,
        r: &mut Request,
        block: Block,
        groups: Option<&Groups<P>>,
    ) -> Result<ApiResponse, ApiFailure> {
        let (group, change) = match self {
            Self::Add(name) => {
                let group = find(groups, name)?;
                (group, ServerChange::Add(body::read(r).await?.server(P::SERVER_PORT)?))
            }
            Self::Change(name, id) => {
                let group = find(groups, name)?;
                change::exists(&group.peers, id)?;
                (group, ServerChange::Change(id, body::read(r).await?.change()?))
            }
            Self::Remove(name, id) => (find(groups, name)?, ServerChange::Remove(id)),
        };
        change.run(r, GroupToChange::new(&group, block)).await
    }
}

/// Describes what `endpoint` names of these groups.
fn show_groups<P: ConnectingProtocol>(
    groups: Option<&Groups<P>>,
    endpoint: Endpoint<'_>,
) -> Result<Vec<u8>, ApiError> {
    Ok(match endpoint {
        Endpoint::Upstream(block, name) => show::upstream(name, &*find(groups, name)?, block),
        Endpoint::Servers(block, name) => show::servers(&find(groups, name)?.peers.list(), block),
        Endpoint::Server(block, name, id) => {
            show::server(&find(groups, name)?.peers.list(), id, block, None).ok_or(ApiError::NO_SERVER)?
        }
        Endpoint::Upstreams(block) => show::upstreams(groups, block),
        _ => return Err(ApiError::NO_PATH),
    })
}

/// The group of this name.
fn find<P: ConnectingProtocol>(
    groups: Option<&Groups<P>>,
    name: &str,
) -> Result<Arc<UpstreamGroup<P>>, ApiError> {
    groups.and_then(|groups| groups.find(name)).cloned().ok_or(ApiError::NO_UPSTREAM)
}

/// Groups of the block of a protocol beside `http`; `None` without such a block.
fn groups<P: ConnectingProtocol>(r: &Request) -> Option<Arc<Groups<P>>> {
    configured_groups::<P>(&r.generation().process.shared_objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_endpoints_with_a_version_or_without() {
        for (path, expected) in [
            ("", Ok(Endpoint::Root)),
            ("/", Ok(Endpoint::Root)),
            ("9/", Ok(Endpoint::Root)),
            ("/openapi.json", Ok(Endpoint::OpenApi)),
            ("/1/http", Ok(Endpoint::Contents(Block::Http))),
            ("/http/", Ok(Endpoint::Contents(Block::Http))),
            ("http/upstreams", Ok(Endpoint::Upstreams(Block::Http))),
            ("/9/http/upstreams/u", Ok(Endpoint::Upstream(Block::Http, "u"))),
            ("/http/upstreams/9/servers/", Ok(Endpoint::Servers(Block::Http, "9"))),
            ("/http/upstreams/u/servers/12", Ok(Endpoint::Server(Block::Http, "u", 12))),
            ("/http/upstreams/u/servers/x", Err("UpstreamBadServerId")),
            ("/http/upstreams/u/servers/-1", Err("UpstreamBadServerId")),
            ("/http/upstreams/u/servers/4294967296", Err("UpstreamBadServerId")),
            ("/http/upstreams/u/servers/1/x", Err("PathNotFound")),
            // A name that no group has.
            ("/http/upstreams//servers", Ok(Endpoint::Servers(Block::Http, ""))),
            ("/9/http/caches/", Ok(Endpoint::Caches)),
            ("/http/caches/a.b", Ok(Endpoint::Cache("a.b"))),
            ("/http/caches/a/purge", Ok(Endpoint::Purge("a"))),
            ("/http/caches/a/b", Err("PathNotFound")),
            ("/9/http/keyvals", Ok(Endpoint::Keyvals(Block::Http))),
            ("/stream/keyvals/a/", Ok(Endpoint::Keyval(Block::Stream, "a"))),
            ("/http/keyvals/a/b", Err("PathNotFound")),
            ("/9/stream/", Ok(Endpoint::Contents(Block::Stream))),
            ("/stream/upstreams", Ok(Endpoint::Upstreams(Block::Stream))),
            ("/stream/upstreams/u/servers/3", Ok(Endpoint::Server(Block::Stream, "u", 3))),
            ("/stream/server_zones", Ok(Endpoint::ServerZones(SessionBlock::Stream))),
            ("/stream/server_zones/a", Ok(Endpoint::ServerZone(SessionBlock::Stream, "a"))),
            ("/mail/server_zones/a", Ok(Endpoint::ServerZone(SessionBlock::Mail, "a"))),
            ("/mail/upstreams", Ok(Endpoint::Upstreams(Block::Mail))),
            ("/mail/caches", Err("PathNotFound")),
            ("/stream/caches", Err("PathNotFound")),
            ("/http/server_zones", Err("PathNotFound")),
            ("x/http", Err("PathNotFound")),
            ("/0/http", Err("UnknownVersion")),
            ("/10/http", Err("UnknownVersion")),
            ("/99999999999/http", Err("UnknownVersion")),
        ] {
            let endpoint = Endpoint::of(path.as_bytes()).map_err(|refusal| refusal.code);
            assert_eq!(endpoint, expected, "{path}");
        }
        assert!(Endpoint::of(b"/http/\xff").is_err());
    }

    #[test]
    fn methods_are_those_that_the_mode_allows() {
        for (endpoint, mode, expected) in [
            (Endpoint::Root, Mode::Write, "GET, HEAD"),
            (Endpoint::Servers(Block::Http, "u"), Mode::Read, "GET, HEAD"),
            (Endpoint::Servers(Block::Http, "u"), Mode::Write, "GET, HEAD, POST"),
            (Endpoint::Server(Block::Stream, "u", 0), Mode::Write, "GET, HEAD, PATCH, DELETE"),
            (Endpoint::Cache("a"), Mode::Write, "GET, HEAD"),
            (Endpoint::Purge("a"), Mode::Write, "POST"),
            (Endpoint::Keyval(Block::Http, "a"), Mode::Write, "GET, HEAD, POST, PATCH, DELETE"),
            (Endpoint::Keyval(Block::Http, "a"), Mode::Read, "GET, HEAD"),
            (Endpoint::Purge("a"), Mode::Read, ""),
        ] {
            assert_eq!(endpoint.methods(mode), expected, "{endpoint:?}");
        }
    }
}
