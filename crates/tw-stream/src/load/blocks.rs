//! Scopes resolved from the outside in, plans installed, listening addresses gathered.

use std::any::Any;
use std::sync::Arc;

use tw_accept::listen::ListenTable;
use tw_conf::{ConfError, Diagnostics, Sources, Span};
use tw_connect::UpstreamGroup;
use tw_connect::upstream_block::{Groups, Upstream, keep_groups, lacks_servers};
use tw_core::config_thread::yield_if_due;
use tw_core::load::{RawSettings, Resolve, Table};
use tw_core::module::Resolved;
use tw_core::reach::Reach;

use super::scope::{BlockKind, BlockScope};
use super::{CORE_SERVER, CORE_UPSTREAM};
use crate::config::{Server, ServerId};
use crate::plan::Plan;
use crate::protocol::Stream;
use crate::server::ServerSettings;

/// Servers and groups as they are built.
#[derive(Default)]
pub(super) struct LoadedStream {
    pub(super) servers: Vec<Server>,
    pub(super) upstreams: Vec<Arc<UpstreamGroup<Stream>>>,
    pub(super) reach: Reach,
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
        let server = server(&settings, table, &mut loaded.reach);
        if server.settings.listens.is_empty() {
            cx.mistakes.add(no_listen(scope.span));
        }
        loaded.servers.push(server);
    }
    Ok(loaded)
}

fn no_listen(span: Span) -> ConfError {
    ConfError::new("no \"listen\" is defined for server").at(span)
}

/// Makes the plan of a server.
fn server(settings: &[Resolved], table: &Table<Stream>, reach: &mut Reach) -> Server {
    let core = core::<ServerSettings>(settings, CORE_SERVER);
    let mut plan = Plan::default();
    for (module, settings) in table.modules().iter().zip(settings) {
        plan.install(module.name, |plan| module.install(settings, plan));
        module.reach(settings, &core, reach);
    }
    Server { settings: core, plan }
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

/// Gathers the servers of every listening address.
pub(super) fn listens(
    servers: &[Server],
    sources: &Sources,
    diagnostics: &mut Diagnostics,
) -> Result<ListenTable<ServerId>, ConfError> {
    let mut table = ListenTable::default();
    for (index, server) in servers.iter().enumerate() {
        yield_if_due();
        let id = ServerId(index as u32);
        for listen in &server.settings.listens {
            for address in &listen.addresses {
                let at = table.add(id, listen, address)?;
                // Servers have no names by which one of several could be meant.
                if let Some(first) = table.servers[at].members.first().filter(|first| **first != id) {
                    let message = format!("conflicting server name \"\" on {address}, ignored");
                    let first = servers[first.0 as usize].settings.listens.iter().find_map(|l| l.span);
                    let warning = ConfError::warn(message);
                    let warning = match listen.span {
                        Some(span) => warning.at(span),
                        None => warning,
                    };
                    diagnostics.push(match first {
                        Some(first) => {
                            warning.hint(format!("the first server of it stands{}", sources.tail(first)))
                        }
                        None => warning,
                    });
                }
            }
        }
    }
    Ok(table)
}
