//! `map`: variables whose values depend on those of others (nginx: ngx_http_map_module, ngx_stream_map_module). Computed
//! variables, in every protocol.

mod table;

use std::collections::HashMap;

use tw_conf::{Args, ConfError, Contexts, Directive, HTTP, MAIL, Node, STREAM, Setting, Span, Word, record};
use tw_core::host_names::{DuplicateHostName, HostName, HostNames, InvalidHostName, Wildcards};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_core::regex::{Caseless, Regex};
use tw_module_support::mapped_values::{KnownValues, RawValues};

use self::table::{MapTable, Subject};

const OUTERMOST: Contexts = HTTP | STREAM | MAIL;

/// Largest `map_hash_bucket_size`; nginx refuses larger ones.
const BUCKET_SIZE_MAX: u64 = 65536 - 64;

/// Maps as written.
#[derive(Default)]
pub(crate) struct Raw {
    maps: Vec<RawMap>,
    max_size: Setting<u64>,
    bucket_size: Setting<u64>,
}

/// One map as written, already compiled for look-ups.
struct RawMap {
    source: Word,
    variable: Word,
    names: HostNames<u32>,
    regexes: Vec<(Regex, u32, Span)>,
    values: RawValues,
    subject: Subject,
}

/// Maps are variables; nothing is left of them in the settings of a block.
pub(crate) struct Map;

impl<P: Protocol> Settings<P> for Map {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("map", "string $variable { … }", OUTERMOST, Args::exact(2).block())
            .doc("Defines a variable by the value of a text: one line for each value, pattern or regular expression.")
            .set(|raw, node, _| {
                raw.maps.push(read(node)?);
                Ok(())
            }),
        // Tables choose their size themselves; only the values that nginx refuses are refused.
        record::number("map_hash_max_size", OUTERMOST)
            .default("2048")
            .doc("Size of tables of maps; without effect.")
            .set(|raw, node, _| raw.max_size.set_number(node)),
        record::size("map_hash_bucket_size", OUTERMOST)
            .default("64")
            .doc("Size of buckets of the tables of maps; without effect.")
            .set(|raw, node, _| raw.bucket_size.set_size(node)),
    ];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        if !raw.maps.is_empty() {
            check_sizes(raw.max_size.or(None, 2048), raw.bucket_size.or(None, 64))?;
        }
        for map in raw.maps {
            if let Err(error) = map.define(cx) {
                cx.mistakes.add(error);
            }
        }
        Ok(Self)
    }

    fn are_shared(&self) -> bool {
        true
    }
}

/// nginx's limits of its tables.
fn check_sizes(max_size: u64, bucket_size: u64) -> Result<(), ConfError> {
    let aligned = bucket_size.next_multiple_of(64);
    if max_size == 0 {
        return Err(ConfError::new("could not build map_hash, you should increase map_hash_max_size: 0"));
    }
    if aligned > BUCKET_SIZE_MAX {
        return Err(ConfError::new(format!(
            "could not build map_hash, too large map_hash_bucket_size: {aligned}"
        )));
    }
    Ok(())
}

fn read(node: &Node) -> Result<RawMap, ConfError> {
    let [source, variable] = node.words()?;
    let mut map = RawMap {
        source: source.clone(),
        variable: variable.clone(),
        names: HostNames::default(),
        regexes: Vec::new(),
        values: RawValues::default(),
        subject: Subject::Text,
    };
    tw_module_support::block::variable_name(node, variable)?;
    let mut value_numbers = HashMap::new();
    for line in node.children()? {
        map.add(line, &mut value_numbers)?;
    }
    Ok(map)
}

impl RawMap {
    fn add<'n>(&mut self, line: &'n Node, value_numbers: &mut KnownValues<'n>) -> Result<(), ConfError> {
        if line.args.is_empty() && line.block.is_none() && line.name.is("hostnames") {
            self.subject = Subject::Host;
            return Ok(());
        }
        let Some((pattern, value)) = self.values.read_line(line, "map", value_numbers)? else {
            return Ok(());
        };
        match pattern {
            [b'~', b'*', pattern @ ..] => self.add_regex(line, pattern, Caseless::Yes, value),
            [b'~', pattern @ ..] => self.add_regex(line, pattern, Caseless::No, value),
            [b'\\', name @ ..] | name => self.add_name(line, name, value),
        }
    }

    fn add_regex(
        &mut self,
        line: &Node,
        pattern: &[u8],
        caseless: Caseless,
        value: u32,
    ) -> Result<(), ConfError> {
        let regex = Regex::new(pattern, caseless).map_err(|error| {
            let pattern = String::from_utf8_lossy(pattern);
            line.fail(format!("regex compilation failed: {error} in \"{pattern}\""))
        })?;
        self.regexes.push((regex, value, line.span));
        Ok(())
    }

    fn add_name(&mut self, line: &Node, name: &[u8], value: u32) -> Result<(), ConfError> {
        let wildcards = match self.subject {
            Subject::Host => Wildcards::Allowed,
            Subject::Text => Wildcards::None,
        };
        let host = HostName::parse(name, wildcards).map_err(|InvalidHostName| {
            line.fail(format!("invalid hostname or wildcard \"{}\"", String::from_utf8_lossy(name)))
        })?;
        let shown = host.to_bytes();
        self.names.add(host, value).map_err(|DuplicateHostName| {
            line.fail(format!("conflicting parameter \"{}\"", String::from_utf8_lossy(&shown)))
        })
    }

    /// Makes it a variable.
    fn define<P: Protocol>(self, cx: &mut Resolve<'_, P>) -> Result<(), ConfError> {
        for (regex, _, span) in &self.regexes {
            for (_, name) in regex.names() {
                cx.vars.capture(name, *span)?;
            }
        }
        let possible = self.values.possible();
        let source = cx.template(&self.source)?;
        let names = self.names;
        let subject = self.subject;
        let regexes = self.regexes.into_iter().map(|(regex, value, _)| (regex, value)).collect();
        let slot = self.values.slot(cx, |values| {
            let table: MapTable<P::Session> = MapTable { names, regexes, values, subject };
            move |s: &P::Session, out: &mut Vec<u8>| table.eval(s, &source, out)
        })?;
        tw_module_support::block::define(cx, &self.variable, slot, possible)
    }
}
