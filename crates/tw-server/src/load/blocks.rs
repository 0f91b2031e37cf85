//! Scopes resolved from the outside in, plans installed, listening addresses gathered.

use std::collections::HashMap;
use std::sync::Arc;

use tw_accept::listen::ServersByAddress;
use tw_conf::{ConfError, Span};
use tw_connect::upstream_block::{WrittenUpstream, resolve_blocks};
use tw_core::config_thread::yield_if_due;
use tw_core::generation::ListenAddress;
use tw_core::load::{ConfigBuilder, Mistakes, RawSettings, Table, settings_of};
use tw_core::module::Resolved;
use tw_core::reach::Reach;
use tw_http::HeadLimits;
use tw_tls_settings::{Ssl, preload_keys};

use super::scope::{BlockKind, BlockScope};
use super::{CORE_ACME, CORE_HTTP2, CORE_HTTP3, CORE_LOCATION, CORE_SERVER, CORE_SSL, CORE_UPSTREAM};
use crate::http::acme::Acme;
use tw_http_versions::h2::directives::Http2;
use tw_http_versions::h3::directives::Http3;
use tw_proxy::health::PassTarget;
use tw_request::config::listen::Listen;
use tw_request::config::location::Location;
use tw_request::config::server::ServerSettings;
use tw_request::config::upstream::UpstreamGroup;
use tw_request::generation::{ListenGroup, PlanId, ServedProtocols, Server};
use tw_request::plan::{self, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::{Parts, Request};
use tw_request::route::{Locations, Pattern, WrittenLocation};

/// Plans and servers as they are built.
#[derive(Default)]
pub(super) struct LoadedHttp {
    pub(super) plans: Vec<Plan>,
    pub(super) servers: Vec<Server>,
    pub(super) upstreams: Vec<Arc<UpstreamGroup>>,
    pub(super) reach: Reach,
    /// Warnings and notes that mean nothing if something is wrong.
    pub(super) warnings: Vec<ConfError>,
}

/// Resolves the `http` block and everything in it.
pub(super) fn build(
    http: BlockScope,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> Result<LoadedHttp, ConfError> {
    let mut built = LoadedHttp::default();
    let blocks = std::iter::once(&http).chain(&http.children);
    preload_keys(blocks.filter_map(|scope| scope.raws.get(CORE_SSL)), cx);
    let resolved = resolve(http.raws, None, table, cx)?;
    let mut used_by_all = std::mem::take(&mut cx.block.named_uses);
    let prepared = cx.vars.prepared;
    let mut upstreams = Vec::new();
    let mut servers = Vec::new();
    for scope in http.children {
        match scope.kind {
            BlockKind::Upstream(name) => {
                upstreams.push(WrittenUpstream { name, raws: scope.raws, span: scope.span });
            }
            _ => servers.push(scope),
        }
    }
    // Groups come first: a location may name one that stands further down.
    let resolving = settings_of::<Location>(&resolved, CORE_LOCATION).resolving.clone();
    built.upstreams =
        resolve_blocks(upstreams, &resolved, resolving, table, CORE_UPSTREAM, cx, &mut built.reach)?;
    // Templates of groups are evaluated by the handlers that pass requests to them.
    let uses = cx.vars.uses.clone();
    for server in servers {
        let span = server.span;
        let settings = resolve(server.raws, Some(&resolved), table, cx)?;
        let ssl = settings_of::<Ssl<Request>>(&settings, CORE_SSL);
        let http2 = settings_of::<Http2>(&settings, CORE_HTTP2);
        let acme = settings_of::<Acme>(&settings, CORE_ACME);
        let http3 = settings_of::<Http3>(&settings, CORE_HTTP3);
        let quic = http3.transport(&settings_of::<Location>(&settings, CORE_LOCATION).keepalive);
        let core = settings_of::<ServerSettings>(&settings, CORE_SERVER);
        let protocols = ServedProtocols { http2: http2.is_on, http3: http3.is_on, hq: http3.has_hq };
        let mut parts = Parts::default();
        parts.put(http3);
        parts.put(http2);
        parts.put(acme);
        let plan = add_plan(&mut built, None, &settings, &core, table, cx);
        let mut of_server =
            OfServer { built: &mut built, plan, settings: core.clone(), named: HashMap::new() };
        let locations = locations(server.children, &settings, plan, &mut of_server, table, cx)?;
        let named = of_server.named;
        let used = std::mem::take(&mut cx.block.named_uses);
        let missing = used.iter().filter(|(name, _)| !named.contains_key(name));
        built.warnings.extend(missing.map(missing_location));
        used_by_all.retain(|(name, _)| !named.contains_key(name));
        let head = HeadLimits { allow_connect: std::mem::take(&mut cx.block.opens_tunnels), ..core.head };
        built.servers.push(Server {
            settings: core,
            head,
            ssl,
            protocols,
            quic,
            parts,
            plan,
            locations,
            named,
            span,
        });
        cx.vars.prepared = prepared;
        cx.vars.uses = uses.clone();
    }
    built.warnings.extend(used_by_all.iter().map(missing_location));
    built.warnings.extend(cx.block.upstream.unused());
    Ok(built)
}

/// The warning of a named location that no server has, in which a directive goes on.
fn missing_location((name, span): &(Box<[u8]>, Span)) -> ConfError {
    let name = String::from_utf8_lossy(name);
    let message = format!("there is no location \"{name}\", a request that goes on there gets 500");
    ConfError::warn(message).at(*span)
}

/// State while the blocks of one server are resolved.
struct OfServer<'a> {
    built: &'a mut LoadedHttp,
    /// Plan of the server itself.
    plan: PlanId,
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
    let uses = cx.vars.uses.clone();
    for scope in scopes {
        yield_if_due();
        // The location of a block without a pattern is the enclosing one.
        let location = match &scope.kind {
            BlockKind::Location(pattern) => cx.block.location.replace(pattern.clone()),
            _ => cx.block.location.clone(),
        };
        let nameless =
            std::mem::replace(&mut cx.block.nameless, !matches!(scope.kind, BlockKind::Location(_)));
        let settings = resolve(scope.raws, Some(outer), table, cx)?;
        let heading =
            cx.block.location.clone().map(|pattern| plan::Heading { pattern, span: Some(scope.span) });
        let inner_plan = add_plan(server.built, heading, &settings, &server.settings, table, cx);
        let inner = locations(scope.children, &settings, inner_plan, server, table, cx)?;
        cx.block.location = location;
        cx.block.nameless = nameless;
        cx.vars.prepared = prepared;
        cx.vars.uses = uses.clone();
        if let BlockKind::Location(Pattern::Predicate(name)) = &scope.kind {
            let name = String::from_utf8_lossy(&name[1..]);
            let predicate = cx.vars.bind(&name, Some(scope.span));
            server.built.plans[inner_plan.0 as usize].predicate = Some(predicate);
            // The predicate is evaluated before the location is chosen, so the plan of the server prepares its
            // variables.
            let prepared = std::mem::replace(&mut cx.vars.prepared, prepared);
            server.built.plans[server.plan.0 as usize].prepared.0 |= prepared.0;
        }
        let outer_plan = &mut server.built.plans[plan.0 as usize];
        match scope.kind {
            BlockKind::Location(pattern) => {
                if let Pattern::Named(name) = &pattern {
                    // Of two named locations with the same name the first one is used, as in nginx.
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
        Pattern::Exact(uri) | Pattern::Prefix { uri, .. } | Pattern::Predicate(uri) | Pattern::Named(uri) => {
            uri.clone()
        }
        Pattern::Regex(regex) => regex.pattern().as_bytes().into(),
    }
}

fn resolve(
    raws: RawSettings,
    outer: Option<&[Resolved]>,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> Result<Vec<Resolved>, ConfError> {
    *cx.block.notes.of() = PassTarget::Nowhere;
    table.resolve(raws, outer, cx, |at, settings, block| {
        if at == CORE_LOCATION {
            block.upstream.has_resolver =
                settings_of::<Location>(settings, CORE_LOCATION).resolving.is_said();
        }
        if at == CORE_SERVER && block.location.is_none() {
            block.server = Some(settings_of(settings, CORE_SERVER));
        }
    })
}

fn add_plan(
    built: &mut LoadedHttp,
    heading: Option<plan::Heading>,
    settings: &[Resolved],
    server: &Arc<ServerSettings>,
    table: &Table<Http>,
    cx: &mut Resolve<'_>,
) -> PlanId {
    let name = heading.as_ref().map_or_else(Box::default, |heading| name_of(&heading.pattern));
    let mut plan = Plan::new(name, server.clone(), settings_of::<Location>(settings, CORE_LOCATION));
    plan.heading = heading;
    plan.prepared = cx.vars.prepared;
    plan.variable_uses = cx.vars.uses.clone();
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

/// Listening addresses, and the servers of each.
pub(super) struct Listens {
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) groups: Vec<ListenGroup>,
}

/// Gathers the servers of every listening address.
pub(super) fn listens(
    servers: &[Server],
    process: &mut ConfigBuilder<'_>,
    mistakes: &mut Mistakes,
) -> Listens {
    let mut http2: Vec<bool> = Vec::new();
    let added = |at: usize, listen: &Listen| {
        if http2.len() <= at {
            http2.push(false);
        }
        http2[at] |= listen.http2;
    };
    let ServersByAddress { addresses, servers, names } =
        ServersByAddress::gather(servers, &[Listen::implied()], added, process, mistakes);
    let join = |((servers, names), http2)| ListenGroup { servers, http2, names };
    let groups = servers.into_iter().zip(names).zip(http2).map(join).collect();
    Listens { addresses, groups }
}
