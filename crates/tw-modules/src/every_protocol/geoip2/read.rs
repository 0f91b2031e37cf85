//! A `geoip2` block as written.

use std::time::Duration;

use tw_conf::{ConfError, Node, Setting, Word, units};
use tw_module_support::block::{refuse_block, variable_name};

/// A block as written.
pub(super) struct RawBlock {
    pub(super) file: Word,
    pub(super) auto_reload: Setting<Duration>,
    pub(super) variables: Vec<RawVariable>,
}

/// A line that defines a variable.
pub(super) struct RawVariable {
    pub(super) name: Word,
    pub(super) kind: RawKind,
}

/// Kind of a variable.
pub(super) enum RawKind {
    /// A property of the database.
    Metadata(MetadataField),
    /// A value of the record of an address.
    Data {
        default: Option<Box<[u8]>>,
        /// Text with the address; `None` for the client's own.
        source: Option<Word>,
        /// Keys of maps and indexes of arrays, from the record to the value.
        path: Vec<Word>,
    },
}

/// Property of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetadataField {
    BuildEpoch,
    LastCheck,
    LastChange,
}

impl RawBlock {
    /// Reads a block.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let mut block =
            Self { file: node.arg(0)?.clone(), auto_reload: Setting::default(), variables: Vec::new() };
        for line in node.children()? {
            refuse_block(line)?;
            if line.name.bytes.starts_with(b"$") {
                block.variables.push(RawVariable::read(line)?);
            } else if line.name.is("auto_reload") {
                block.auto_reload.set_with(line, read_interval)?;
            } else {
                return Err(line.fail(format!("invalid setting \"{}\"", line.name)));
            }
        }
        Ok(block)
    }
}

fn read_interval(line: &Node) -> Result<Duration, ConfError> {
    let [time] = line.args.as_slice() else {
        return Err(line.fail("invalid number of arguments for auto_reload"));
    };
    let interval = units::sec(&time.bytes);
    interval.ok_or_else(|| line.fail(format!("invalid interval for auto_reload \"{time}\"")).at(time.span))
}

impl RawVariable {
    fn read(line: &Node) -> Result<Self, ConfError> {
        variable_name(line, &line.name)?;
        let kind = match line.args.as_slice() {
            [word, fields @ ..] if word.is("metadata") => {
                RawKind::Metadata(MetadataField::read(line, fields)?)
            }
            _ => read_data(line)?,
        };
        Ok(Self { name: line.name.clone(), kind })
    }
}

impl MetadataField {
    fn read(line: &Node, fields: &[Word]) -> Result<Self, ConfError> {
        let [field] = fields else {
            return Err(line.fail("invalid number of arguments for metadata"));
        };
        match &*field.bytes {
            b"build_epoch" => Ok(Self::BuildEpoch),
            b"last_check" => Ok(Self::LastCheck),
            b"last_change" => Ok(Self::LastChange),
            _ => Err(line.fail(format!("invalid metadata \"{field}\"")).at(field.span)),
        }
    }
}

/// Reads `[default=value] [source=$variable] path …`; parameters end at the first word without `=`.
fn read_data(line: &Node) -> Result<RawKind, ConfError> {
    let name = &line.name;
    let count = line.args.iter().take_while(|word| word.bytes.contains(&b'=')).count();
    let (parameters, path) = line.args.split_at(count);
    let mut default = None;
    let mut source = None;
    for word in parameters {
        let (known_word, what, value) = match &*word.bytes {
            [b'd', b'e', b'f', b'a', b'u', b'l', b't', b'=', value @ ..] => (&mut default, "default", value),
            [b's', b'o', b'u', b'r', b'c', b'e', b'=', value @ ..] => (&mut source, "source", value),
            _ => (&mut None, "", &[][..]),
        };
        if value.is_empty() {
            return Err(line.fail(format!("invalid setting \"{word}\" for \"{name}\"")).at(word.span));
        }
        if known_word.is_some() {
            return Err(line.fail(format!("{what} has already been declared for \"{name}\"")).at(word.span));
        }
        *known_word = Some(Word { bytes: value.into(), ..word.clone() });
    }
    if let Some(source) = source.as_ref().filter(|source| !source.bytes.starts_with(b"$")) {
        let message = format!("invalid source variable name \"{source}\"");
        return Err(line.fail(message).at(source.span));
    }
    Ok(RawKind::Data { default: default.map(|word| word.bytes), source, path: path.to_vec() })
}
