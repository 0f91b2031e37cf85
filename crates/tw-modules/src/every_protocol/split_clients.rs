//! `split_clients`: variables that divide clients into parts of a given size (nginx: ngx_http_split_clients_module,
//! ngx_stream_split_clients_module). Computed variables, in every protocol.

use std::sync::Arc;

use tw_conf::units::ExtraDecimals;
use tw_conf::{Args, ConfError, Directive, HTTP, MAIL, Node, STREAM, Word, record};
use tw_core::load::Resolve;
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_core::vars::{SlotKind, Template, Value};

/// Hundredths of a percent in all.
const WHOLE: u64 = 10_000;

/// Blocks as written.
#[derive(Default)]
pub(crate) struct Raw {
    splits: Vec<RawSplit>,
}

/// One block, already compiled for look-ups.
struct RawSplit {
    source: Word,
    variable: Word,
    parts: Parts,
}

/// Module without settings: its variables belong to the whole configuration.
pub(crate) struct SplitClients;

/// Values of parts of all hashes.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// The first hash above a part, and its value.
    bounded: Vec<(u32, Box<[u8]>)>,
    /// The value of all other hashes.
    rest: Option<Box<[u8]>>,
}

impl<P: Protocol> Settings<P> for SplitClients {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[record::new(
        "split_clients",
        "string $variable { … }",
        HTTP | STREAM | MAIL,
        Args::exact(2).block(),
    )
    .doc("Defines a variable that has each value for a given part of all texts; the same text has the same value.")
    .set(|raw, node, _| {
        let [source, variable] = node.words()?;
        tw_module_support::block::variable_name(node, variable)?;
        let parts = read(node)?;
        raw.splits.push(RawSplit { source: source.clone(), variable: variable.clone(), parts });
        Ok(())
    })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        for split in raw.splits {
            let source = cx.template(&split.source)?;
            let parts = split.parts;
            let mut values: Vec<_> = parts.bounded.iter().map(|(_, value)| value.clone()).collect();
            values.push(parts.rest.clone().unwrap_or_default());
            let compute = Arc::new(move |s: &P::Session, out: &mut Vec<u8>| {
                parts.eval(s, &source, out);
                Value::Found
            });
            tw_module_support::block::define(cx, &split.variable, SlotKind::Computed(compute), Some(values))?;
        }
        Ok(Self)
    }

    fn are_shared(&self) -> bool {
        true
    }
}

impl Parts {
    /// Appends the value for the text of `source`.
    pub(crate) fn eval<S: Session>(&self, s: &S, source: &Template<S>, out: &mut Vec<u8>) {
        let start = out.len();
        source.eval(s, out);
        let hash = murmur2(&out[start..]);
        out.truncate(start);
        out.extend_from_slice(self.find(hash));
    }

    fn find(&self, hash: u32) -> &[u8] {
        let part = self.bounded.iter().find(|(end, _)| hash < *end).map(|(_, value)| value);
        part.or(self.rest.as_ref()).map(|value| &**value).unwrap_or_default()
    }
}

fn read(node: &Node) -> Result<Parts, ConfError> {
    let mut parts = Parts::default();
    let mut sum = 0u64;
    let mut end = 0u64;
    for line in node.children()? {
        tw_module_support::block::refuse_block(line)?;
        let [value] = line.args.as_slice() else {
            return Err(line.fail("invalid number of the split_clients parameters"));
        };
        let size = match &*line.name.bytes {
            b"*" => None,
            [percent @ .., b'%'] => Some(hundredths(percent).filter(|size| *size > 0)),
            _ => Some(None),
        };
        let value = value.bytes.clone();
        sum = match size {
            Some(Some(size)) => sum.saturating_add(size),
            Some(None) => return Err(line.fail(format!("invalid percent value \"{}\"", line.name))),
            None => WHOLE,
        };
        if sum > WHOLE {
            return Err(node.fail("percent total is greater than 100%").at(node.end));
        }
        match size.flatten() {
            Some(size) if sum < WHOLE => {
                end += size * u64::from(u32::MAX) / WHOLE;
                parts.bounded.push((end as u32, value));
            }
            // The part that reaches 100 % takes all remaining hashes; parts behind it are never chosen.
            _ => {
                parts.rest.get_or_insert(value);
            }
        }
    }
    Ok(parts)
}

/// Reads a number with at most two decimals as hundredths.
fn hundredths(text: &[u8]) -> Option<u64> {
    tw_conf::units::fixed(text, 2, ExtraDecimals::Refused)
}

/// Austin Appleby's MurmurHash2 with the seed 0, as nginx has it.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use tw_conf::{MemoryFiles, Reader, Tree};

    use super::*;

    fn parts(block: &str) -> Result<Parts, String> {
        let mut tree = Tree::default();
        let text = format!("split_clients a $b {{ {block} }}");
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        read(&tree.nodes[0]).map_err(|error| error.message)
    }

    #[test]
    fn hashes_of_known_texts() {
        // Computed by another program.
        for (text, expected) in [
            ("", 0),
            ("a", 0x9268_5f5e),
            ("abc", 0x1357_7c9b),
            ("abcd", 0x2687_3021),
            ("hello world", 0x44a8_1419),
        ] {
            assert_eq!(murmur2(text.as_bytes()), expected, "{text}: {:#x}", murmur2(text.as_bytes()));
        }
    }

    #[test]
    fn parts_of_all_hashes() {
        let whole = parts("0.5% a; 50.01% b; * c;").unwrap();
        let end = |size: u64| (size * u64::from(u32::MAX) / WHOLE) as u32;
        for (hash, expected) in [
            (0, "a"),
            (end(50) - 1, "a"),
            (end(50), "b"),
            (end(50) + end(5001) - 1, "b"),
            (end(50) + end(5001), "c"),
            (u32::MAX, "c"),
        ] {
            assert_eq!(whole.find(hash), expected.as_bytes(), "{hash}");
        }
        let part = parts("10% a; 20% b;").unwrap();
        assert_eq!((part.find(end(1000)), part.find(u32::MAX)), (&b"b"[..], &b""[..]));
        let full = parts("99.99% a; .01% b;").unwrap();
        assert_eq!((full.find(end(9999) - 1), full.find(u32::MAX)), (&b"a"[..], &b"b"[..]));
    }

    #[test]
    fn refused_parts() {
        let percent = |text: &str| Err(format!("invalid percent value \"{text}\""));
        let sum = Err("percent total is greater than 100%".to_owned());
        for (block, expected) in [
            ("100% a;", Ok(())),
            ("1% a; 99.0% b;", Ok(())),
            ("100.01% a;", sum.clone()),
            ("50% a; 50.01% b;", sum.clone()),
            ("100% a; 1% b;", sum.clone()),
            ("42949672.96% a;", sum.clone()),
            ("0% a;", percent("0%")),
            ("0.00% a;", percent("0.00%")),
            ("1.001% a;", percent("1.001%")),
            ("1.1.1% a;", percent("1.1.1%")),
            ("-1% a;", percent("-1%")),
            ("% a;", percent("%")),
            (".% a;", percent(".%")),
            ("10 a;", percent("10")),
            ("999999999999999999999% a;", percent("999999999999999999999%")),
            ("10%;", Err("invalid number of the split_clients parameters".to_owned())),
            ("10% a b;", Err("invalid number of the split_clients parameters".to_owned())),
            ("10% { }", Err("unexpected \"{\"".to_owned())),
        ] {
            assert_eq!(parts(block).map(|_| ()), expected, "{block}");
        }
    }
}
