//! DNS messages: encoding of queries and matching of responses (RFC 1035, section 4; RFC 5452 on forged responses).
//!
//! A message to the socket of a query is its response only if its id, its name in the same mix of upper and lower
//! case, its type and its class are those of the query. Id, port and case are random, so an attacker who does not see
//! the query has to guess some 30 bits, and one more for each letter of the name.
//!
//! EDNS is not used, so datagrams have at most 512 bytes: a small response is not sent in fragments, and the second
//! fragment of a response has no id to guess.

use std::net::IpAddr;

use hickory_proto::op::{Header, MessageType, OpCode, Query as WireQuestion, ResponseCode};
use hickory_proto::rr::{DNSClass, Name as WireName, RData, Record as WireRecord, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use crate::answer::{self, Data, Record};
pub use crate::answer::{Kind, Question, Records, Reply, Service};
use crate::error::ResolveError;
use crate::name::Name;

tw_base::limits! {
    /// Limits of the work that a message can cause.
    pub(crate) const LIMITS;

    /// Records of an answer of a name server.
    ///
    /// Records of an answer that are read. To read one takes up to 2 µs when it is made for that, and 64 KiB have room for
    /// 6000.
    pub(crate) const RECORDS_MAX: usize = 1024, count, "the others are left out";
}

/// Random bytes that a question is made from: two of its id, one bit for each byte of its name.
pub const RANDOM_SIZE: usize = 34;
/// Length of the fixed part of a message.
const HEADER_SIZE: usize = 12;
/// Flags of a question: recursion desired.
const FLAGS: [u8; 2] = [0x01, 0x00];
/// The class of the internet.
const CLASS_IN: u16 = 1;

/// Case of the letters of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// At random, and an answer has to have them the same: "0x20".
    Mixed,
    /// Lower case.
    Lower,
}

/// Transport of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// UDP: datagrams can be forged.
    Udp,
    /// TCP: hard to forge. A server may change the case of names.
    Tcp,
}

/// Query for a question, with its random id and case.
#[derive(Debug)]
pub struct Query {
    question: Question,
    id: [u8; 2],
    bytes: Vec<u8>,
    is_mixed: bool,
}

/// Result of matching a message to a query.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No answer to this question: forged, late, or garbage.
    Unmatched,
    /// An answer but for the case of its letters: forged, or from a server that writes names as it likes.
    WrongCase,
    /// Truncated: the query has to be repeated over TCP.
    Truncated,
    /// The answer.
    Reply(Reply),
}

impl Query {
    /// Makes a question. `random` has to be unpredictable.
    pub fn new(question: &Question, case: Case, random: &[u8; RANDOM_SIZE]) -> Self {
        let (id, bits) = random.split_first_chunk::<2>().expect("RANDOM_SIZE is more than 2");
        let mut bytes = Vec::with_capacity(HEADER_SIZE + question.name.as_bytes().len() + 6);
        bytes.extend_from_slice(id);
        bytes.extend_from_slice(&FLAGS);
        // The counts: one question, no answers, no authorities, no additional records.
        bytes.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        let mut bits = bits.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
        let mut is_mixed = false;
        for label in question.name.labels() {
            // A label has at most 63 bytes.
            bytes.push(label.len() as u8);
            for letter in label {
                let upper =
                    bits.next().unwrap_or_default() && case == Case::Mixed && letter.is_ascii_lowercase();
                is_mixed |= upper;
                bytes.push(if upper { letter.to_ascii_uppercase() } else { *letter });
            }
        }
        bytes.push(0);
        let kind = match question.kind {
            Kind::A => RecordType::A,
            Kind::Aaaa => RecordType::AAAA,
            Kind::Srv => RecordType::SRV,
            Kind::Ptr => RecordType::PTR,
        };
        bytes.extend_from_slice(&u16::from(kind).to_be_bytes());
        bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
        Self { question: question.clone(), id: *id, bytes, is_mixed }
    }

    /// The message to send, without the length that TCP has in front of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns `true` if any letter is in upper case.
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Matches `message` to this query. Never fails.
    pub fn match_response(&self, message: &[u8], carrier: Transport) -> Verdict {
        let mut decoder = BinDecoder::new(message);
        let Ok(header) = Header::read(&mut decoder) else { return Verdict::Unmatched };
        if header.id != u16::from_be_bytes(self.id)
            || header.message_type != MessageType::Response
            || header.op_code != OpCode::Query
        {
            return Verdict::Unmatched;
        }
        let failure = failure(header.response_code);
        match (header.counts.queries, failure) {
            (1, _) => {}
            // A server that does not understand the question need not repeat it.
            (0, Some(error)) => return Verdict::Reply(Reply::Failed(error)),
            _ => return Verdict::Unmatched,
        }
        let Ok(echoed) = WireQuestion::read(&mut decoder) else { return Verdict::Unmatched };
        let name = Name::from_labels(echoed.name.iter());
        if name.as_ref() != Some(&self.question.name)
            || kind_of(echoed.query_type) != Some(self.question.kind)
            || echoed.query_class != DNSClass::IN
        {
            return Verdict::Unmatched;
        }
        if carrier == Transport::Udp && !self.has_same_case(&echoed.name) {
            return Verdict::WrongCase;
        }
        match (header.truncation, carrier) {
            (false, _) => {}
            (true, Transport::Udp) => return Verdict::Truncated,
            (true, Transport::Tcp) => return Verdict::Reply(Reply::Failed(ResolveError::Format)),
        }
        Verdict::Reply(match failure {
            Some(error) => Reply::Failed(error),
            None => self.read(&mut decoder, &header).unwrap_or(Reply::Failed(ResolveError::Format)),
        })
    }

    /// Returns `true` if an equal name also has the case of this query.
    fn has_same_case(&self, name: &WireName) -> bool {
        let mut sent = self.bytes.get(HEADER_SIZE..).unwrap_or_default();
        name.iter().all(|label| {
            let Some((_, rest)) = sent.split_first() else { return false };
            let Some((own, rest)) = rest.split_at_checked(label.len()) else { return false };
            sent = rest;
            own == label
        })
    }

    /// Reads a response and, if needed, the lifetime of a negative answer. `None` if it is malformed.
    fn read(&self, decoder: &mut BinDecoder<'_>, header: &Header) -> Option<Reply> {
        let count = usize::from(header.counts.answers);
        let mut records = Vec::new();
        for _ in 0..count.min(RECORDS_MAX) {
            let record = WireRecord::read(decoder).ok()?;
            records.extend(self.relevant(record));
        }
        // Answers of which none can be used do not say that an address has no name.
        if self.question.kind == Kind::Ptr && count > 0 && records.is_empty() {
            return None;
        }
        let is_missing = header.response_code == ResponseCode::NXDomain;
        let is_answered = records.iter().any(|record| !matches!(record.data, Data::Alias(_)));
        let soa_ttl = if is_answered || count > RECORDS_MAX {
            None
        } else {
            soa_ttl(decoder, usize::from(header.counts.authorities))
        };
        Some(answer::read(&self.question, records, is_missing, soa_ttl))
    }

    /// Record as used here, if it is relevant: an alias, or of the requested type.
    fn relevant(&self, record: WireRecord) -> Option<Record> {
        if record.dns_class != DNSClass::IN {
            return None;
        }
        let data = match (record.data, self.question.kind) {
            (RData::CNAME(to), _) => Data::Alias(Name::from_labels(to.iter())?),
            (RData::A(addr), Kind::A) => Data::Address(IpAddr::V4(addr.0)),
            (RData::AAAA(addr), Kind::Aaaa) => Data::Address(IpAddr::V6(addr.0)),
            // RFC 2782: the root as a target means that there is no such service.
            (RData::SRV(srv), Kind::Srv) => Data::Service(Service {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                target: Name::from_labels(srv.target.iter())?,
            }),
            (RData::PTR(name), Kind::Ptr) => Data::Pointer(Name::from_labels(name.iter())?),
            _ => return None,
        };
        Some(Record { owner: Name::from_labels(record.name.iter())?, ttl: seconds(record.ttl), data })
    }
}

/// Lifetime of a negative answer (RFC 2308, section 5). `None` if the record is malformed.
fn soa_ttl(decoder: &mut BinDecoder<'_>, count: usize) -> Option<u32> {
    for _ in 0..count.min(RECORDS_MAX) {
        let record = WireRecord::read(decoder).ok()?;
        if let RData::SOA(soa) = &record.data {
            return Some(seconds(record.ttl).min(seconds(soa.minimum)));
        }
    }
    None
}

/// RFC 2181, section 8: a time with the highest bit set is none.
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

fn kind_of(kind: RecordType) -> Option<Kind> {
    match kind {
        RecordType::A => Some(Kind::A),
        RecordType::AAAA => Some(Kind::Aaaa),
        RecordType::SRV => Some(Kind::Srv),
        RecordType::PTR => Some(Kind::Ptr),
        _ => None,
    }
}

fn failure(code: ResponseCode) -> Option<ResolveError> {
    match code {
        ResponseCode::NoError | ResponseCode::NXDomain => None,
        ResponseCode::FormErr => Some(ResolveError::Format),
        ResponseCode::ServFail => Some(ResolveError::ServerFailure),
        ResponseCode::NotImp => Some(ResolveError::NotImplemented),
        ResponseCode::Refused => Some(ResolveError::Refused),
        other => Some(ResolveError::Other(u16::from(other))),
    }
}
