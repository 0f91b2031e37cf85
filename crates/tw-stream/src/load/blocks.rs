//! Scopes resolved from the outside in, plans installed, listening addresses gathered.

use std::any::Any;
use std::sync::Arc;

use tw_accept::listen::ListenTable;
use tw_accept::ssl::require_certificates;
use tw_conf::{ConfError, Diagnostics, Sources, Span};
use tw_connect::UpstreamGroup;
use tw_connect::upstream_block::{Groups, Upstream, keep_groups, lacks_servers};
use tw_core::config_thread::yield_if_due;
use tw_core::generation::ListenAddress;
use tw_core::load::{RawSettings, Resolve, Table};
use tw_core::module::Resolved;
use tw_core::reach::Reach;
use tw_core::server_names::{ServerNames, WrittenNames};

use super::scope::{BlockKind, BlockScope};
use super::{CORE_SERVER, CORE_SSL, CORE_UPSTREAM};
use crate::config::{AddressGroup, Server, ServerId};
use crate::plan::Plan;
use crate::protocol::Stream;
use crate::server::ServerSettings;

/// Servers and groups as they are built.
#[derive(Default)]
pub(super) struct LoadedStream {
    pub(super) servers: Vec<Server>,
    pub(super) upstreams: Vec<Arc<UpstreamGroup<Stream>>>,
    pub(super) reach: Reach,
    /// True if upstream servers are connected to over TLS.
    pub(super) secures_upstreams: bool,
}

/// Resolves the `stream` block and everything in it.
pub(super) fn build(
    stream: BlockScope,
    table: &Table<Stream>,
    cx: &mut Resolve<'_, Stream>,
) -> Result<LoadedStream, ConfError> {
    let mut loaded = LoadedStream::default();
    let outer = resolve(stream.raws, None, table, cx)?;
    let (upstreams, servers): (Vec<_>, Vec<_>) =
        stream.children.into_iter().partition(|child| matches!(child.kind, BlockKind::Upstream(_)));
    // Groups come first: a server may name one that stands further down.
    cx.block.upstream.resolving = Some(core::<ServerSettings>(&outer, CORE_SERVER).resolving.clone());
    let mut groups = Groups::default();
    for scope in upstreams {
        let BlockKind::Upstream(name) = scope.kind else { continue };
        cx.block.upstream.name = Some(name.clone());
        let settings = resolve(scope.raws, Some(&outer), table, cx)?;
        cx.block.upstream.name = None;
        let upstream = core::<Upstream<Stream>>(&settings, CORE_UPSTREAM);
        if let Some(message) = lacks_servers(&name, upstream.group.as_deref()) {
            cx.mistakes.add(ConfError::new(message).at(scope.span));
        }
        if let Some(group) = &upstream.group {
            if let Some(state) = &group.state {
                loaded.reach.replaces_file(state.path().to_bytes());
            }
            loaded.upstreams.push(group.clone());
            groups.insert(group.clone());
        }
    }
    cx.block.upstream.groups = keep_groups(groups, cx);
    for scope in servers {
        yield_if_due();
        let settings = resolve(scope.raws, Some(&outer), table, cx)?;
        let server = server(&settings, scope.span, table, &mut loaded.reach);
        if server.settings.listens.is_empty() {
            cx.mistakes.add(no_listen(scope.span));
        }
        loaded.servers.push(server);
    }
    loaded.secures_upstreams = cx.block.upstream.uses_tls;
    Ok(loaded)
}

fn no_listen(span: Span) -> ConfError {
    ConfError::new("no \"listen\" is defined for server").at(span)
}

/// Makes the plan of a server.
fn server(settings: &[Resolved], span: Span, table: &Table<Stream>, reach: &mut Reach) -> Server {
    let core = core::<ServerSettings>(settings, CORE_SERVER);
    let mut plan = Plan::default();
    for (module, settings) in table.modules().iter().zip(settings) {
        plan.install(module.name, |plan| module.install(settings, plan));
        module.reach(settings, &core, reach);
    }
    Server { settings: core, ssl: self::core(settings, CORE_SSL), plan, span }
}

fn resolve(
    raws: RawSettings,
    outer: Option<&[Resolved]>,
    table: &Table<Stream>,
    cx: &mut Resolve<'_, Stream>,
) -> Result<Vec<Resolved>, ConfError> {
    table.resolve(raws, outer, cx, |at, settings, block| {
        if at == CORE_SERVER {
            let core = core::<ServerSettings>(settings, CORE_SERVER);
            block.upstream.has_resolver = core.resolving.is_said();
        }
    })
}

fn core<T: Any + Send + Sync>(settings: &[Resolved], at: usize) -> Arc<T> {
    settings[at].clone().downcast().expect("the core modules stand first in every scope")
}

/// Listening addresses, and the servers of each.
pub(super) struct Listens {
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) groups: Vec<AddressGroup>,
}

/// Gathers the servers of every listening address.
pub(super) fn listens(
    servers: &[Server],
    sources: &Sources,
    diagnostics: &mut Diagnostics,
) -> Result<Listens, ConfError> {
    let mut table = ListenTable::default();
    let mut names: Vec<ServerNames<ServerId>> = Vec::new();
    let server = |id: ServerId| &servers[id.0 as usize];
    for (index, own) in servers.iter().enumerate() {
        yield_if_due();
        let id = ServerId(index as u32);
        for listen in &own.settings.listens {
            for address in &listen.addresses {
                let at = table.add(id, listen, address)?;
                if names.len() <= at {
                    names.push(ServerNames::default());
                }
                let written = |id: ServerId| {
                    let Server { settings, span, .. } = server(id);
                    WrittenNames { names: &settings.names, spans: &settings.name_spans, server: Some(*span) }
                };
                let members = &table.servers[at].members;
                names[at].add_server(id, members, written, address, (sources, &mut *diagnostics));
            }
        }
    }
    let ListenTable { addresses, servers: members, .. } = table;
    let join = |(servers, names)| AddressGroup { servers, names };
    let groups: Vec<_> = members.into_iter().zip(names).map(join).collect();
    for group in groups.iter().map(|group| &group.servers).filter(|group| group.ssl) {
        let asking = |id: ServerId| {
            let mut listens = server(id).settings.listens.iter();
            listens.find(|listen| listen.ssl && listen.addresses.contains(&group.address))?.span
        };
        require_certificates(group, |id| &*server(id).ssl, |id| (asking(id), Some(server(id).span)))?;
    }
    Ok(Listens { addresses, groups })
}
