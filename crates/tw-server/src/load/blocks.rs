//! Scopes resolved from the outside in, plans installed, listening addresses gathered.

use std::collections::HashMap;
use std::sync::Arc;

use tw_accept::listen::ListenTable;
use tw_accept::ssl::{Ssl, require_certificates};
use tw_conf::{ConfError, Diagnostics, Sources};
use tw_connect::upstream_block::lacks_servers;
use tw_core::config_thread::yield_if_due;
use tw_core::generation::ListenAddress;
use tw_core::load::{RawSettings, Table};
use tw_core::module::Resolved;
use tw_core::reach::Reach;
use tw_core::server_names::{ServerNames, WrittenNames};
use tw_http::HeadLimits;

use super::scope::{BlockKind, BlockScope};
use super::{CORE_ACME, CORE_HTTP2, CORE_LOCATION, CORE_SERVER, CORE_SSL, CORE_UPSTREAM, Resolve};
use crate::config::acme::Acme;
use crate::config::http2::Http2;
use crate::config::listen::Listen;
use crate::config::location::Location;
use crate::config::server::ServerSettings;
use crate::config::upstream::{Groups, Upstream};
use crate::http::Http;
use crate::http::generation::{ListenGroup, PlanId, Server, ServerId};
use crate::http::plan::{self, Plan};
use crate::http::proxy::UpstreamGroup;
use crate::http::proxy::health::PassTarget;
use crate::http::request::Request;
use crate::http::route::{Locations, Pattern, WrittenLocation};

/// Plans and servers as they are built.
#[derive(Default)]
pub(super) struct LoadedHttp {
    pub(super) plans: Vec<Plan>,
    pub(super) servers: Vec<Server>,
    pub(super) upstreams: Vec<Arc<UpstreamGroup>>,
    pub(super) reach: Reach,
}

/// Resolves the `http` block and everything in it.
pub(super) fn build(
    http: BlockScope,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> Result<LoadedHttp, ConfError> {
    let mut built = LoadedHttp::default();
    let resolved = resolve(http.raws, None, table, cx)?;
    let prepared = cx.vars.prepared;
    let (upstreams, servers): (Vec<_>, Vec<_>) =
        http.children.into_iter().partition(|child| matches!(child.kind, BlockKind::Upstream(_)));
    // Groups come first: a location may name one that stands further down.
    cx.block.upstream.resolving = Some(core::<Location>(&resolved, CORE_LOCATION).resolving.clone());
    let mut groups = Groups::default();
    for scope in upstreams {
        let BlockKind::Upstream(name) = scope.kind else { continue };
        cx.block.upstream.name = Some(name.clone());
        let settings = resolve(scope.raws, Some(&resolved), table, cx)?;
        cx.block.upstream.name = None;
        let upstream = core::<Upstream>(&settings, CORE_UPSTREAM);
        if let Some(message) = lacks_servers(&name, upstream.group.as_deref()) {
            let error = ConfError::new(message);
            cx.mistakes.add(match scope.span {
                Some(span) => error.at(span),
                None => error,
            });
        }
        if let Some(group) = &upstream.group {
            if let Some(state) = &group.state {
                built.reach.replaces_file(state.path().to_bytes());
            }
            built.upstreams.push(group.clone());
            groups.insert(group.clone());
        }
    }
    cx.block.upstream.groups = Arc::new(groups);
    for server in servers {
        let span = server.span;
        let settings = resolve(server.raws, Some(&resolved), table, cx)?;
        let (ssl, http2) = (core::<Ssl<Request>>(&settings, CORE_SSL), core::<Http2>(&settings, CORE_HTTP2));
        let acme = core::<Acme>(&settings, CORE_ACME);
        let core = core::<ServerSettings>(&settings, CORE_SERVER);
        let plan = add_plan(&mut built, None, &settings, &core, table, cx);
        let mut of_server = OfServer { built: &mut built, settings: core.clone(), named: HashMap::new() };
        let locations = locations(server.children, &settings, plan, &mut of_server, table, cx)?;
        let named = of_server.named;
        let head = HeadLimits { allow_connect: std::mem::take(&mut cx.block.opens_tunnels), ..core.head };
        built.servers.push(Server { settings: core, head, ssl, http2, acme, plan, locations, named, span });
        cx.vars.prepared = prepared;
    }
    Ok(built)
}

/// State while the blocks of one server are resolved.
struct OfServer<'a> {
    built: &'a mut LoadedHttp,
    settings: Arc<ServerSettings>,
    named: HashMap<Box<[u8]>, PlanId>,
}

/// Resolves the blocks in a server or location, whose own plan is `plan` and settings `outer`.
fn locations(
    scopes: Vec<BlockScope>,
    outer: &[Resolved],
    plan: PlanId,
    server: &mut OfServer,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> Result<Locations, ConfError> {
    let mut list = Vec::with_capacity(scopes.len());
    let prepared = cx.vars.prepared;
    for scope in scopes {
        yield_if_due();
        // In a block without a pattern, the location is the one it stands in.
        let location = match &scope.kind {
            BlockKind::Location(pattern) => cx.block.location.replace(pattern.clone()),
            _ => cx.block.location.clone(),
        };
        let nameless =
            std::mem::replace(&mut cx.block.nameless, !matches!(scope.kind, BlockKind::Location(_)));
        let settings = resolve(scope.raws, Some(outer), table, cx)?;
        let written = cx.block.location.clone().map(|pattern| plan::Heading { pattern, span: scope.span });
        let inner_plan = add_plan(server.built, written, &settings, &server.settings, table, cx);
        let inner = locations(scope.children, &settings, inner_plan, server, table, cx)?;
        cx.block.location = location;
        cx.block.nameless = nameless;
        cx.vars.prepared = prepared;
        let outer_plan = &mut server.built.plans[plan.0 as usize];
        match scope.kind {
            BlockKind::Location(pattern) => {
                if let Pattern::Named(name) = &pattern {
                    // Of two with one name the first answers, as in nginx.
                    server.named.entry(name.clone()).or_insert(inner_plan);
                }
                let adds_slash = server.built.plans[inner_plan.0 as usize].adds_slash;
                list.push(WrittenLocation { pattern, plan: inner_plan, adds_slash, inner });
            }
            BlockKind::If => outer_plan.ifs.push(inner_plan),
            BlockKind::LimitExcept(methods) => outer_plan.limit_except = Some((methods, inner_plan)),
            BlockKind::Http | BlockKind::Server | BlockKind::Upstream(_) => {}
        }
    }
    Ok(Locations::new(list))
}

fn name_of(pattern: &Pattern) -> Box<[u8]> {
    match pattern {
        Pattern::Exact(uri) | Pattern::Prefix { uri, .. } | Pattern::Named(uri) => uri.clone(),
        Pattern::Regex(regex) => regex.pattern().as_bytes().into(),
    }
}

fn resolve(
    raws: RawSettings,
    outer: Option<&[Resolved]>,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> Result<Vec<Resolved>, ConfError> {
    cx.block.passing = PassTarget::Nowhere;
    table.resolve(raws, outer, cx, |at, settings, block| {
        if at == CORE_LOCATION {
            block.upstream.has_resolver = core::<Location>(settings, CORE_LOCATION).resolving.is_said();
        }
        if at == CORE_SERVER && block.location.is_none() {
            block.server = Some(core(settings, CORE_SERVER));
        }
    })
}

fn add_plan(
    built: &mut LoadedHttp,
    written: Option<plan::Heading>,
    settings: &[Resolved],
    server: &Arc<ServerSettings>,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> PlanId {
    let name = written.as_ref().map_or_else(Box::default, |written| name_of(&written.pattern));
    let mut plan = Plan::new(name, server.clone(), core::<Location>(settings, CORE_LOCATION));
    plan.written = written;
    plan.prepared = cx.vars.prepared;
    for (module, settings) in table.modules().iter().zip(settings) {
        module.install(settings, &mut plan);
        module.reach(settings, &plan.core, &mut built.reach);
        plan.credit(module.name);
    }
    for (span, message) in std::mem::take(&mut plan.warnings) {
        cx.warn(span, message);
    }
    let id = PlanId(built.plans.len() as u32);
    built.plans.push(plan);
    id
}

fn core<T: std::any::Any + Send + Sync>(settings: &[Resolved], at: usize) -> Arc<T> {
    settings[at].clone().downcast().expect("the core modules stand first in every scope")
}

/// Listening addresses, and the servers of each.
pub(super) struct Listens {
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) groups: Vec<ListenGroup>,
}

/// Parts of a [`ListenGroup`] that only HTTP has.
#[derive(Default)]
struct HttpListen {
    http2: bool,
    names: ServerNames<ServerId>,
}

/// Gathers the servers of every listening address.
pub(super) fn listens(
    servers: &[Server],
    sources: &Sources,
    diagnostics: &mut Diagnostics,
) -> Result<Listens, ConfError> {
    let mut table = ListenTable::default();
    let mut own: Vec<HttpListen> = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        yield_if_due();
        let id = ServerId(index as u32);
        let implied;
        let listens = match server.settings.listens.as_slice() {
            [] => {
                implied = [Listen::implied()];
                &implied[..]
            }
            listens => listens,
        };
        for listen in listens {
            for address in &listen.addresses {
                let at = table.add(id, listen, address)?;
                if own.len() <= at {
                    own.push(HttpListen::default());
                }
                own[at].http2 |= listen.http2;
                let members = &table.servers[at].members;
                let written = |id: ServerId| {
                    let server = &servers[id.0 as usize];
                    let (names, spans) = (&*server.settings.names, &*server.settings.name_spans);
                    WrittenNames { names, spans, server: server.span }
                };
                own[at].names.add_server(id, members, written, address, (sources, diagnostics));
            }
        }
    }
    let ListenTable { addresses, servers: members, .. } = table;
    let join = |(servers, HttpListen { http2, names })| ListenGroup { servers, http2, names };
    let groups: Vec<_> = members.into_iter().zip(own).map(join).collect();
    for group in groups.iter().filter(|group| group.ssl) {
        let server = |id: ServerId| &servers[id.0 as usize];
        let asking = |id: ServerId| {
            let mut listens = server(id).settings.listens.iter();
            listens.find(|listen| listen.ssl && listen.addresses.contains(&group.address))?.span
        };
        require_certificates(&group.servers, |id| &*server(id).ssl, |id| (asking(id), server(id).span))?;
    }
    Ok(Listens { addresses, groups })
}
