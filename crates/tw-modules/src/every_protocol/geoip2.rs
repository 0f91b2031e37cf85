//! `geoip2`: variables from MaxMind databases, found by an address (ngx_http_geoip2_module and ngx_stream_geoip2_module, which
//! nginx loads as modules of others). Computed variables, in every protocol.
//!
//! A database is in memory as a whole, because a page of a mapped file could make a loop wait for the disk. It is read while the
//! configuration is loaded, and with `auto_reload` again when it has changed.

mod database;
mod read;
#[cfg(test)]
mod tests;
mod value;

use std::collections::HashSet;
use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, HTTP, MAIL, Network, STREAM, Setting, record};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::{Protocol, Settings};
use tw_core::reach::Reach;
use tw_core::reloaded_file::ReloadedFile;
use tw_core::vars::{SlotKind, Value};
use tw_module_support::address_source::{AddressSource, read_network};
use tw_module_support::forwarded::ProxyChain;

use self::database::{Database, FORMAT, ValuePath};
use self::read::{MetadataField, RawBlock, RawKind, RawVariable};

type DatabaseFile = ReloadedFile<Database>;

/// Blocks and proxies as written.
#[derive(Default)]
pub(crate) struct Raw {
    blocks: Vec<RawBlock>,
    proxies: Vec<Network>,
    recursive: Setting<bool>,
}

/// Databases in use. Their variables belong to the whole configuration.
pub(crate) struct GeoIp2 {
    /// Full names of the files.
    files: Vec<Vec<u8>>,
}

/// Database that metrics are about: shared object of a configuration.
struct DatabaseInUse(Arc<DatabaseFile>);

impl<P: Protocol> Settings<P> for GeoIp2 {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("geoip2", "file { … }", HTTP | STREAM | MAIL, Args::exact(1).block())
            .since("Tailwater 0.2")
            .doc("Defines variables by what a MaxMind database (.mmdb) has about the client's address. A line \"$variable [default=value] [source=$address] path …\" names a value of the record, by keys of maps and numbers of arrays; the variable has the default if there is none. \"$variable metadata build_epoch | last_check | last_change\" is a time of the database. \"auto_reload time\" looks for a changed file that often and uses it without a reload; a broken one is reported and not used.")
            .set(|raw, node, _| {
                raw.blocks.push(RawBlock::read(node)?);
                Ok(())
            }),
        record::new("geoip2_proxy", "address | CIDR", HTTP, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("A proxy that is trusted to name the client's address in X-Forwarded-For, for variables without source.")
            .set(|raw, node, cx| {
                raw.proxies.push(read_network(node, node.arg(0)?, cx)?);
                Ok(())
            }),
        record::flag("geoip2_proxy_recursive", HTTP)
            .default("off")
            .since("Tailwater 0.2")
            .doc("Passes over all trusted proxies in X-Forwarded-For, to the last address that is none.")
            .set(|raw, node, _| raw.recursive.set_flag(node)),
    ];

    const METRICS: &'static [Metric] = &[Metric {
        name: "geoip2_database_build_timestamp_seconds",
        kind: MetricKind::Gauge,
        labels: &["file"],
        doc: "Time at which each database was built (geoip2), in seconds since 1970.",
        read: |scrape, out| {
            for database in scrape.shared_objects::<DatabaseInUse>() {
                let file = String::from_utf8_lossy(database.0.path());
                out.value(&[&file], database.0.read(Database::build_epoch));
            }
        },
    }];

    const LIMITS: &'static [tw_base::Limit] = database::LIMITS;

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let proxies =
            Proxies { networks: raw.proxies.into(), chain: ProxyChain::of(raw.recursive.or(None, false)) };
        let mut files = Vec::new();
        let mut seen_values = HashSet::new();
        for block in raw.blocks {
            let path = cx.full_path(&block.file.bytes);
            if !seen_values.insert(path.clone()) {
                let shown = String::from_utf8_lossy(&path);
                return Err(
                    ConfError::new(format!("duplicate GeoIP2 database \"{shown}\"")).at(block.file.span)
                );
            }
            let load = DatabaseFile::load(&path, &FORMAT, cx);
            let database = load.map_err(|why| ConfError::new(why).at(block.file.span))?;
            cx.keep(&path, |_| false, || DatabaseInUse(database.clone()));
            if let Some(interval) = block.auto_reload.take().filter(|interval| !interval.is_zero()) {
                database.check_every(interval, cx);
            }
            for variable in block.variables {
                variable.define(&database, &proxies, cx)?;
            }
            files.push(path);
        }
        Ok(Self { files })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn reach(&self, _core: &P::Core, reach: &mut Reach) {
        self.files.iter().for_each(|file| reach.rereads_file(file));
    }
}

/// Proxies that are trusted, for all variables without `source`.
struct Proxies {
    networks: Arc<[Network]>,
    chain: ProxyChain,
}

impl RawVariable {
    /// Makes it a variable.
    fn define<P: Protocol>(
        self,
        database: &Arc<DatabaseFile>,
        proxies: &Proxies,
        cx: &mut Resolve<'_, P>,
    ) -> Result<(), ConfError> {
        let database = database.clone();
        let kind: SlotKind<P::Session> = match self.kind {
            RawKind::Metadata(field) => SlotKind::Computed(Arc::new(move |_, out: &mut Vec<u8>| {
                write_metadata(&database, field, out);
                Value::Found
            })),
            RawKind::Data { default, source, path } => {
                let source = match source {
                    None => {
                        AddressSource { text: None, proxies: proxies.networks.clone(), chain: proxies.chain }
                    }
                    Some(word) => AddressSource {
                        text: Some(cx.template(&word)?),
                        proxies: Arc::default(),
                        chain: ProxyChain::Last,
                    },
                };
                let path = ValuePath::new(&path).map_err(|why| ConfError::new(why).at(self.name.span))?;
                SlotKind::Computed(Arc::new(move |s: &P::Session, out: &mut Vec<u8>| {
                    let addr = source.address(s, out);
                    match addr.map(|addr| database.read(|database| database.look_up(addr, &path, out))) {
                        Some(Value::Found) => Value::Found,
                        Some(Value::Missing) | None => write_default(default.as_deref(), out),
                    }
                }))
            }
        };
        tw_module_support::block::define(cx, &self.name, kind, None)
    }
}

fn write_default(default: Option<&[u8]>, out: &mut Vec<u8>) -> Value {
    let Some(default) = default else { return Value::Missing };
    out.extend_from_slice(default);
    Value::Found
}

fn write_metadata(database: &DatabaseFile, field: MetadataField, out: &mut Vec<u8>) {
    let seconds = match field {
        MetadataField::BuildEpoch => database.read(Database::build_epoch).cast_signed(),
        MetadataField::LastCheck => database.last_check(),
        MetadataField::LastChange => database.last_change(),
    };
    value::write(out, format_args!("{seconds}"));
}
