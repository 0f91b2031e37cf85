//! Writer of databases in the MaxMind DB format, version 2.0: a binary tree of address bits, values, and metadata.

use std::net::IpAddr;

/// Bytes between the tree and the values.
const SEPARATOR: [u8; 16] = [0; 16];
/// Bytes before the metadata.
const MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";
/// Time at which databases are built unless a test says another: 2026-11-20.
const BUILD_EPOCH: u64 = 1_795_132_800;

/// A value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum MmdbValue {
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Unsigned integer of 16 bits.
    U16(u16),
    /// Unsigned integer of 32 bits.
    U32(u32),
    /// Unsigned integer of 64 bits.
    U64(u64),
    /// Unsigned integer of 128 bits.
    U128(u128),
    /// Signed integer of 32 bits.
    I32(i32),
    /// Number of 64 bits with a fraction.
    Double(f64),
    /// Number of 32 bits with a fraction.
    Float(f32),
    /// Boolean.
    Bool(bool),
    /// Keys and values.
    Map(Vec<(String, MmdbValue)>),
    /// Values.
    Array(Vec<MmdbValue>),
    /// Pointer to an offset behind the tree and the separator, wherever that leads.
    Pointer(u32),
    /// Bytes of the file, right or wrong.
    Raw(Vec<u8>),
}

/// A text.
pub fn text(text: impl Into<String>) -> MmdbValue {
    MmdbValue::Text(text.into())
}

/// A map.
pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, MmdbValue)>) -> MmdbValue {
    MmdbValue::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// A record of a country, as databases of countries have it.
pub fn country(code: &str, name: &str) -> MmdbValue {
    map([("country", map([("iso_code", text(code)), ("names", map([("en", text(name))]))]))])
}

/// A database to be written.
#[derive(Debug, Clone)]
pub struct Mmdb {
    is_v6: bool,
    record_size: u16,
    build_epoch: u64,
    nodes: Vec<[Record; 2]>,
    values: Vec<u8>,
    metadata: Vec<(String, MmdbValue)>,
}

/// One side of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    Empty,
    Node(usize),
    /// Offset of a value.
    Value(usize),
}

impl Mmdb {
    /// A database of IPv4 addresses with records of 24, 28 or 32 bits.
    pub fn v4(record_size: u16) -> Self {
        Self::new(false, record_size)
    }

    /// A database of IPv6 addresses, whose first ones are those of IPv4.
    pub fn v6(record_size: u16) -> Self {
        Self::new(true, record_size)
    }

    fn new(is_v6: bool, record_size: u16) -> Self {
        let nodes = vec![[Record::Empty; 2]];
        Self { is_v6, record_size, build_epoch: BUILD_EPOCH, nodes, values: Vec::new(), metadata: Vec::new() }
    }

    /// Sets the time at which it is built.
    #[must_use]
    pub fn built(mut self, epoch: u64) -> Self {
        self.build_epoch = epoch;
        self
    }

    /// Replaces an entry of the metadata.
    #[must_use]
    pub fn metadata(mut self, key: &str, value: MmdbValue) -> Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Adds a network, `192.0.2.0/24`, with its record. Inner networks come after outer ones.
    #[must_use]
    pub fn network(mut self, network: &str, record: &MmdbValue) -> Self {
        let (addr, bits) = network.split_once('/').expect("a network has a slash");
        let bits: usize = bits.parse().expect("bits are a number");
        let (number, bits, width) = match addr.parse().expect("an address") {
            IpAddr::V4(addr) if self.is_v6 => (u128::from(addr.to_bits()), bits + 96, 128),
            IpAddr::V4(addr) => (u128::from(addr.to_bits()), bits, 32),
            IpAddr::V6(addr) => (addr.to_bits(), bits, 128),
        };
        let value = self.values.len();
        encode(record, &mut self.values);
        let mut node = 0;
        for at in 0..bits {
            let side = usize::from(number >> (width - 1 - at) & 1 == 1);
            if at + 1 == bits {
                self.nodes[node][side] = Record::Value(value);
                break;
            }
            node = match self.nodes[node][side] {
                Record::Node(next) => next,
                outer => {
                    self.nodes.push([outer; 2]);
                    self.nodes[node][side] = Record::Node(self.nodes.len() - 1);
                    self.nodes.len() - 1
                }
            };
        }
        self
    }

    /// All bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut file = Vec::new();
        for node in &self.nodes {
            let [remaining, right] = node.map(|record| match record {
                Record::Empty => self.nodes.len(),
                Record::Node(at) => at,
                Record::Value(at) => self.nodes.len() + SEPARATOR.len() + at,
            } as u32);
            let [l, left @ ..] = remaining.to_be_bytes();
            let [r, right @ ..] = right.to_be_bytes();
            match self.record_size {
                28 => file.extend([&left[..], &[l << 4 | r], &right].concat()),
                32 => file.extend([&[l][..], &left, &[r], &right].concat()),
                _ => file.extend([left, right].concat()),
            }
        }
        file.extend(SEPARATOR);
        file.extend(&self.values);
        file.extend(MARKER);
        encode(&self.all_metadata(), &mut file);
        file
    }

    fn all_metadata(&self) -> MmdbValue {
        let mut all = vec![
            ("binary_format_major_version".to_owned(), MmdbValue::U16(2)),
            ("binary_format_minor_version".to_owned(), MmdbValue::U16(0)),
            ("build_epoch".to_owned(), MmdbValue::U64(self.build_epoch)),
            ("database_type".to_owned(), text("Test")),
            ("description".to_owned(), map([("en", text("A database of a test"))])),
            ("ip_version".to_owned(), MmdbValue::U16(if self.is_v6 { 6 } else { 4 })),
            ("languages".to_owned(), MmdbValue::Array(vec![text("en")])),
            ("node_count".to_owned(), MmdbValue::U32(self.nodes.len() as u32)),
            ("record_size".to_owned(), MmdbValue::U16(self.record_size)),
        ];
        for (key, value) in &self.metadata {
            all.retain(|(candidate, _)| candidate != key);
            all.push((key.clone(), value.clone()));
        }
        MmdbValue::Map(all)
    }
}

/// Appends a value as the format has it.
fn encode(value: &MmdbValue, out: &mut Vec<u8>) {
    match value {
        MmdbValue::Text(text) => payload(2, text.as_bytes(), out),
        MmdbValue::Double(number) => payload(3, &number.to_be_bytes(), out),
        MmdbValue::Bytes(bytes) => payload(4, bytes, out),
        MmdbValue::U16(number) => integer(5, &number.to_be_bytes(), out),
        MmdbValue::U32(number) => integer(6, &number.to_be_bytes(), out),
        MmdbValue::I32(number) => payload(8, &number.to_be_bytes(), out),
        MmdbValue::U64(number) => integer(9, &number.to_be_bytes(), out),
        MmdbValue::U128(number) => integer(10, &number.to_be_bytes(), out),
        MmdbValue::Bool(is_true) => control(14, usize::from(*is_true), out),
        MmdbValue::Float(number) => payload(15, &number.to_be_bytes(), out),
        MmdbValue::Map(entries) => {
            control(7, entries.len(), out);
            for (key, value) in entries {
                payload(2, key.as_bytes(), out);
                encode(value, out);
            }
        }
        MmdbValue::Array(values) => {
            control(11, values.len(), out);
            values.iter().for_each(|value| encode(value, out));
        }
        MmdbValue::Pointer(offset) => {
            out.push(0b0011_1000);
            out.extend(offset.to_be_bytes());
        }
        MmdbValue::Raw(bytes) => out.extend(bytes),
    }
}

fn payload(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    control(kind, bytes.len(), out);
    out.extend(bytes);
}

/// An unsigned integer without its leading zeros.
fn integer(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    payload(kind, &bytes[zeros..], out);
}

/// The byte with the type, and the size: in that byte, or behind it.
fn control(kind: u8, size: usize, out: &mut Vec<u8>) {
    let (short, rest) = match size {
        0..29 => (size as u8, 0),
        29..285 => (29, size - 29),
        285..65_821 => (30, size - 285),
        _ => (31, size - 65_821),
    };
    match kind {
        1..8 => out.push(kind << 5 | short),
        _ => out.extend([short, kind - 7]),
    }
    let further = usize::from(short.saturating_sub(28));
    out.extend(&(rest as u32).to_be_bytes()[4 - further..]);
}
