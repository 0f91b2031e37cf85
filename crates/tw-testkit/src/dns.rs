//! Scripted DNS server: true answers, forged ones, garbage, or nothing, over UDP and TCP on one port of the loopback
//! interface.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Kinds of records, as they are numbered.
pub mod kind {
    /// IPv4 address.
    pub const A: u16 = 1;
    /// Alias.
    pub const CNAME: u16 = 5;
    /// Start of authority, which gives the lifetime of negative answers.
    pub const SOA: u16 = 6;
    /// Name of an address.
    pub const PTR: u16 = 12;
    /// IPv6 address.
    pub const AAAA: u16 = 28;
    /// Server of a service.
    pub const SRV: u16 = 33;
}

/// Codes of answers.
pub mod code {
    /// The server could not read the question.
    pub const FORMERR: u8 = 1;
    /// The server has a problem.
    pub const SERVFAIL: u8 = 2;
    /// There is no such name.
    pub const NXDOMAIN: u8 = 3;
    /// The server does not know this kind of question.
    pub const NOTIMP: u8 = 4;
    /// The server does not want to answer.
    pub const REFUSED: u8 = 5;
}

/// Transport of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A datagram.
    Udp,
    /// A connection.
    Tcp,
}

/// Query as received.
#[derive(Debug, Clone)]
pub struct DnsQuery {
    /// The name in lower case, without the dot at its end.
    pub name: String,
    /// The name as it was written.
    pub written_name: String,
    /// Kind of records.
    pub kind: u16,
    /// Transport of the query.
    pub carrier: Transport,
    /// Address of the client.
    pub from: SocketAddr,
    id: [u8; 2],
}

/// An answer to be made.
#[derive(Debug, Clone)]
pub struct DnsResponse {
    /// The id.
    pub id: [u8; 2],
    /// The name it claims to be about.
    pub name: String,
    /// The kind it claims to be about.
    pub kind: u16,
    /// Number of questions in the message: 1, or 0.
    pub questions: u16,
    flags: [u8; 2],
    answers: Vec<Vec<u8>>,
    authorities: Vec<Vec<u8>>,
}

/// Data of a record.
#[derive(Debug, Clone)]
pub enum Data<'a> {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// An alias.
    Cname(&'a str),
    /// A name of an address.
    Ptr(&'a str),
    /// Priority, weight, port and target of a service.
    Srv(u16, u16, u16, &'a str),
    /// Anything: its kind and its bytes.
    Raw(u16, Vec<u8>),
}

impl DnsQuery {
    /// Reads a question; `None` if it is none.
    pub fn read(message: &[u8], carrier: Transport, from: SocketAddr) -> Option<Self> {
        let id = *message.first_chunk()?;
        let mut rest = message.get(12..)?;
        let mut labels = Vec::new();
        loop {
            let (len, tail) = rest.split_first()?;
            let (label, tail) = tail.split_at_checked(usize::from(*len))?;
            rest = tail;
            if label.is_empty() {
                break;
            }
            labels.push(String::from_utf8_lossy(label).into_owned());
        }
        let kind = u16::from_be_bytes(*rest.first_chunk()?);
        let text = labels.join(".");
        Some(Self { name: text.to_lowercase(), written_name: text, kind, carrier, from, id })
    }

    /// Makes an empty response.
    pub fn answer(&self) -> DnsResponse {
        DnsResponse {
            id: self.id,
            name: self.written_name.clone(),
            kind: self.kind,
            questions: 1,
            flags: [0x81, 0x80],
            answers: Vec::new(),
            authorities: Vec::new(),
        }
    }

    /// Makes a response with one address for this name, if the query is for addresses.
    pub fn address(&self, ttl: u32, addr: [u8; 4]) -> Vec<u8> {
        let answer = self.answer();
        match self.kind {
            kind::A => answer.record(&self.name, ttl, Data::A(addr.into())).bytes(),
            _ => answer.bytes(),
        }
    }
}

impl DnsResponse {
    /// Sets the response code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.flags[1] = self.flags[1] & 0xf0 | code;
        self
    }

    /// Sets the truncation flag.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        self.flags[0] |= 0x02;
        self
    }

    /// Adds a record.
    #[must_use]
    pub fn record(mut self, name: &str, ttl: u32, data: Data<'_>) -> Self {
        let (kind, bytes) = match data {
            Data::A(addr) => (kind::A, addr.octets().to_vec()),
            Data::Aaaa(addr) => (kind::AAAA, addr.octets().to_vec()),
            Data::Cname(to) => (kind::CNAME, wire_name(to)),
            Data::Ptr(name) => (kind::PTR, wire_name(name)),
            Data::Srv(priority, weight, port, target) => {
                let numbers = [priority, weight, port].map(u16::to_be_bytes).concat();
                (kind::SRV, [numbers, wire_name(target)].concat())
            }
            Data::Raw(kind, bytes) => (kind, bytes),
        };
        self.answers.push(wire_record(name, kind, ttl, &bytes));
        self
    }

    /// Adds a SOA record, which gives the lifetime of a negative answer.
    #[must_use]
    pub fn soa(mut self, ttl: u32, minimum: u32) -> Self {
        let mut bytes = [wire_name("ns.example"), wire_name("who.example")].concat();
        for number in [1, 7200, 3600, 86_400, minimum] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        self.authorities.push(wire_record("example", kind::SOA, ttl, &bytes));
        self
    }

    /// The message.
    pub fn bytes(&self) -> Vec<u8> {
        let count = |records: &Vec<Vec<u8>>| (records.len() as u16).to_be_bytes();
        let mut message = [self.id, self.flags, self.questions.to_be_bytes()].concat();
        message.extend([count(&self.answers), count(&self.authorities), [0; 2]].concat());
        if self.questions > 0 {
            message.extend(wire_name(&self.name));
            message.extend([self.kind.to_be_bytes(), [0, 1]].concat());
        }
        message.extend(self.answers.concat());
        message.extend(self.authorities.concat());
        message
    }
}

fn wire_name(name: &str) -> Vec<u8> {
    let labels = name.split('.').filter(|label| !label.is_empty());
    let mut bytes: Vec<u8> =
        labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).collect();
    bytes.push(0);
    bytes
}

fn wire_record(name: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let fixed = [kind.to_be_bytes(), [0, 1]].concat();
    let size = (data.len() as u16).to_be_bytes();
    [&wire_name(name), &*fixed, &ttl.to_be_bytes(), &size, data].concat()
}

/// Messages that a script makes the server send.
#[derive(Debug, Default)]
pub struct Outbox(Vec<(Option<SocketAddr>, Vec<u8>)>);

impl Outbox {
    /// Sends a message to the client.
    pub fn send(&mut self, message: Vec<u8>) {
        self.0.push((None, message));
    }

    /// Sends a datagram to another address.
    pub fn send_to(&mut self, to: SocketAddr, message: Vec<u8>) {
        self.0.push((Some(to), message));
    }
}

type Script = dyn FnMut(&DnsQuery, &mut Outbox) + Send;

/// A running name server; it ends with this value.
pub struct DnsServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    is_over: AtomicBool,
    script: Mutex<Box<Script>>,
    log: Mutex<Vec<DnsQuery>>,
}

impl DnsServer {
    /// Starts a server whose responses are made by `script`.
    pub fn start(script: impl FnMut(&DnsQuery, &mut Outbox) + Send + 'static) -> Self {
        let (udp, tcp) = sockets();
        let addr = udp.local_addr().expect("a bound socket has an address");
        let script: Mutex<Box<Script>> = Mutex::new(Box::new(script));
        let shared = Arc::new(Shared { is_over: AtomicBool::new(false), script, log: Mutex::default() });
        let for_udp = Arc::clone(&shared);
        let for_tcp = Arc::clone(&shared);
        let threads = vec![
            thread::spawn(move || for_udp.serve_udp(&udp)),
            thread::spawn(move || for_tcp.serve_tcp(&tcp)),
        ];
        Self { addr, shared, threads }
    }

    /// Address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Queries received so far.
    pub fn queries(&self) -> Vec<DnsQuery> {
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of queries for records of this type and name.
    pub fn count(&self, name: &str, kind: u16) -> usize {
        self.queries().iter().filter(|query| query.name == name && query.kind == kind).count()
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        // Both threads are woken, and see the flag.
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(&[], self.addr);
        }
        let _ = TcpStream::connect(self.addr);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn answers(
        &self,
        message: &[u8],
        carrier: Transport,
        from: SocketAddr,
    ) -> Vec<(Option<SocketAddr>, Vec<u8>)> {
        let Some(query) = DnsQuery::read(message, carrier, from) else { return Vec::new() };
        let mut outbox = Outbox::default();
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(query.clone());
        (self.script.lock().unwrap_or_else(PoisonError::into_inner))(&query, &mut outbox);
        outbox.0
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        let mut buffer = [0; 2048];
        while !self.is_over.load(SeqCst) {
            let Ok((size, from)) = socket.recv_from(&mut buffer) else { continue };
            for (to, message) in self.answers(&buffer[..size], Transport::Udp, from) {
                let _ = socket.send_to(&message, to.unwrap_or(from));
            }
        }
    }

    fn serve_tcp(&self, listener: &TcpListener) {
        while !self.is_over.load(SeqCst) {
            let Ok((mut stream, from)) = listener.accept() else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let mut size = [0; 2];
            if stream.read_exact(&mut size).is_err() {
                continue;
            }
            let mut message = vec![0; usize::from(u16::from_be_bytes(size))];
            if stream.read_exact(&mut message).is_err() {
                continue;
            }
            for (_, message) in self.answers(&message, Transport::Tcp, from) {
                let _ = stream.write_all(&(message.len() as u16).to_be_bytes());
                let _ = stream.write_all(&message);
            }
        }
    }
}

/// Sockets of both kinds on one port.
fn sockets() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has free ports");
        let addr = udp.local_addr().expect("a bound socket has an address");
        // Another process may have the port for TCP.
        if let Ok(tcp) = TcpListener::bind(addr) {
            return (udp, tcp);
        }
    }
    panic!("no port is free for UDP and TCP");
}
