//! Scopes resolved from the outside in, plans installed, listening addresses gathered.

use std::sync::Arc;

use tw_accept::listen::ServersByAddress;
use tw_conf::{ConfError, Span};
use tw_connect::UpstreamGroup;
use tw_connect::session_blocks::WrittenBlocks;
use tw_connect::upstream_block::resolve_blocks;
use tw_core::config_thread::yield_if_due;
use tw_core::generation::ListenAddress;
use tw_core::load::{ConfigBuilder, Mistakes, RawSettings, Resolve, Table, settings_of};
use tw_core::module::Resolved;
use tw_core::reach::Reach;
use tw_core::vars::VariableUses;
use tw_tls_settings::preload_keys;

use super::{CORE_SERVER, CORE_SSL, CORE_UPSTREAM};
use crate::config::{Server, ServerSettings};
use crate::listening::AddressGroup;
use crate::plan::Plan;
use crate::protocol::Stream;

/// Servers and groups as they are built.
#[derive(Default)]
pub(super) struct LoadedStream {
    pub(super) servers: Vec<Server>,
    pub(super) upstreams: Vec<Arc<UpstreamGroup<Stream>>>,
    pub(super) reach: Reach,
    /// True if upstream servers are connected to over TLS.
    pub(super) secures_upstreams: bool,
    /// Notes that mean nothing if something is wrong.
    pub(super) notes: Vec<ConfError>,
}

/// Resolves the `stream` block and everything in it.
pub(super) fn build(
    stream: WrittenBlocks,
    table: &Table<Stream>,
    cx: &mut Resolve<'_, Stream>,
) -> Result<LoadedStream, ConfError> {
    let mut loaded = LoadedStream::default();
    preload_keys(stream.module_settings(CORE_SSL), cx);
    let outer = resolve(stream.own, None, table, cx)?;
    // Groups come first: a server may name one that stands further down.
    let resolving = settings_of::<ServerSettings>(&outer, CORE_SERVER).resolving.clone();
    loaded.upstreams =
        resolve_blocks(stream.upstreams, &outer, resolving, table, CORE_UPSTREAM, cx, &mut loaded.reach)?;
    // Templates of groups are evaluated by the handlers that pass sessions to them.
    let uses = cx.vars.uses.clone();
    for (raws, span) in stream.servers {
        yield_if_due();
        let settings = resolve(raws, Some(&outer), table, cx)?;
        let uses_of_server = std::mem::replace(&mut cx.vars.uses, uses.clone());
        let server = server(&settings, span, uses_of_server, table, &mut loaded.reach);
        if server.settings.listens.is_empty() {
            cx.mistakes.add(no_listen(span));
        }
        loaded.servers.push(server);
    }
    loaded.secures_upstreams = cx.block.upstream.uses_tls;
    loaded.notes = cx.block.upstream.unused();
    Ok(loaded)
}

fn no_listen(span: Span) -> ConfError {
    ConfError::new("no \"listen\" is defined for server").at(span)
}

/// Makes the plan of a server.
fn server(
    settings: &[Resolved],
    span: Span,
    variable_uses: VariableUses,
    table: &Table<Stream>,
    reach: &mut Reach,
) -> Server {
    let core = settings_of::<ServerSettings>(settings, CORE_SERVER);
    let mut plan = Plan { variable_uses, ..Plan::default() };
    for (module, settings) in table.modules().iter().zip(settings) {
        plan.install(module.name, |plan| module.install(settings, plan));
        module.reach(settings, &core, reach);
    }
    Server { settings: core, ssl: settings_of(settings, CORE_SSL), plan, span }
}

fn resolve(
    raws: RawSettings,
    outer: Option<&[Resolved]>,
    table: &Table<Stream>,
    cx: &mut Resolve<'_, Stream>,
) -> Result<Vec<Resolved>, ConfError> {
    table.resolve(raws, outer, cx, |at, settings, block| {
        if at == CORE_SERVER {
            let core = settings_of::<ServerSettings>(settings, CORE_SERVER);
            block.upstream.has_resolver = core.resolving.is_said();
        }
    })
}

/// Gathers the servers of every listening address.
pub(super) fn listens(
    servers: &[Server],
    process: &mut ConfigBuilder<'_>,
    mistakes: &mut Mistakes,
) -> Listens {
    let ServersByAddress { addresses, servers, names } =
        ServersByAddress::gather(servers, &[], |_, _| {}, process, mistakes);
    let join = |(servers, names)| AddressGroup { servers, names };
    Listens { addresses, groups: servers.into_iter().zip(names).map(join).collect() }
}

/// Listening addresses, and the servers of each.
pub(super) struct Listens {
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) groups: Vec<AddressGroup>,
}
