//! Event loop of the load: many connections on one thread, each with a socket of its own, as clients have.
//!
//! Datagrams are received and sent in batches (`recvmmsg`, `UDP_GRO`, `UDP_SEGMENT`). The engine is `quinn-proto`; nothing of it waits.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, EndpointConfig, TransportConfig, VarInt};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use tw_sys::datagram::{Joining, MESSAGE_SIZE, OutgoingMessage, ReceiveBatch};
use tw_testkit::Random;

use super::client::{Client, Happened, Request};
use crate::Outcome;

/// Datagrams of one message.
const SEGMENTS_MAX: usize = 16;
/// Window of a stream: larger than most files, so that congestion control decides.
const STREAM_WINDOW: u32 = 16 << 20;
/// Streams that a server may open.
const UNI_STREAMS: u32 = 8;
/// Events of one call.
const EVENT_COUNT: usize = 512;

/// Loss of datagrams on the way, in both directions.
#[derive(Debug)]
struct Loss {
    percent: usize,
    random: Random,
}

impl Loss {
    fn loses(&mut self) -> bool {
        self.random.happens(self.percent)
    }
}

/// Connections to one server.
pub(crate) struct Clients {
    epoll: OwnedFd,
    server: SocketAddr,
    config: ClientConfig,
    own: EndpointConfig,
    /// Connections by their keys.
    all: Vec<Option<Client>>,
    /// Keys of those that are closed.
    free: Vec<usize>,
    /// Keys of those that may have packets to send.
    changed: Vec<usize>,
    timers: BTreeSet<(Instant, usize)>,
    loss: Option<Loss>,
    received: ReceiveBatch,
    out: Vec<u8>,
    /// Events that the caller has not taken, with the keys of their connections.
    events: Vec<(usize, Happened)>,
    /// Bytes of content so far.
    pub(crate) bytes: u64,
}

impl Clients {
    /// No connections yet; `tls` offers the protocol h3.
    pub(crate) fn new(server: SocketAddr, tls: &Arc<rustls::ClientConfig>) -> Outcome<Self> {
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(STREAM_WINDOW.into())
            .receive_window(VarInt::MAX)
            .max_concurrent_uni_streams(UNI_STREAMS.into())
            .max_idle_timeout(None);
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls.clone())?));
        config.transport_config(Arc::new(transport));
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            server,
            config,
            own: EndpointConfig::default(),
            all: Vec::new(),
            free: Vec::new(),
            changed: Vec::new(),
            timers: BTreeSet::new(),
            loss: None,
            received: ReceiveBatch::default(),
            out: Vec::new(),
            events: Vec::new(),
            bytes: 0,
        })
    }

    /// Loses so many of 100 datagrams in each direction, the same ones with the same seed.
    pub(crate) fn with_loss(mut self, percent: usize, seed: u64) -> Self {
        self.loss = (percent > 0).then(|| Loss { percent, random: Random::new(seed) });
        self
    }

    /// Begins a handshake; returns the key of the connection.
    pub(crate) fn connect(&mut self) -> Outcome<usize> {
        let client = Client::connect(self.server, self.config.clone(), self.own.clone())?;
        let key = self.free.pop().unwrap_or(self.all.len());
        epoll::add(&self.epoll, &client.socket, EventData::new_u64(key as u64), EventFlags::IN)?;
        if key == self.all.len() {
            self.all.push(None);
        }
        self.all[key] = Some(client);
        self.changed.push(key);
        Ok(key)
    }

    /// Begins a request.
    pub(crate) fn send(&mut self, key: usize, request: &Request) {
        let Some(client) = self.all.get_mut(key).and_then(Option::as_mut) else { return };
        let was_changed = client.is_changed;
        client.send(request.clone());
        if client.is_changed && !was_changed {
            self.changed.push(key);
        }
    }

    /// Closes a connection.
    pub(crate) fn close(&mut self, key: usize) {
        let Some(client) = self.all.get_mut(key).and_then(Option::as_mut) else { return };
        client.close();
        self.flush(key, Instant::now());
        if let Some(client) = self.all[key].take()
            && let Some(timer) = client.timer
        {
            self.timers.remove(&(timer, key));
        }
        self.free.push(key);
    }

    /// Sends, waits for datagrams and timers until `until` at most, and returns what has happened.
    pub(crate) fn turn(&mut self, until: Instant) -> Outcome<Vec<(usize, Happened)>> {
        let now = Instant::now();
        for key in std::mem::take(&mut self.changed) {
            self.flush(key, now);
        }
        let wake = self.timers.first().map_or(until, |(timer, _)| until.min(*timer));
        let mut ready = Vec::with_capacity(EVENT_COUNT);
        let wait = Timespec::try_from(wake.saturating_duration_since(now))?;
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for Event { data, .. } in ready {
            self.receive(usize::try_from(data.u64())?);
        }
        let now = Instant::now();
        while let Some(&(timer, key)) = self.timers.first().filter(|(timer, _)| *timer <= now) {
            self.timers.remove(&(timer, key));
            if let Some(client) = self.all[key].as_mut() {
                client.timer = None;
                client.engine.connection.handle_timeout(now);
                self.process(key, now);
            }
        }
        Ok(std::mem::take(&mut self.events))
    }

    fn receive(&mut self, key: usize) {
        let Some(client) = self.all.get_mut(key).and_then(Option::as_mut) else { return };
        // An error that the network reports means that the server has ended: its connections time out.
        let _ = self.received.receive(&client.socket);
        let now = Instant::now();
        for message in self.received.iter() {
            let mut bytes = BytesMut::from(message.bytes);
            let size = message.segment.map_or(bytes.len(), usize::from).max(1);
            while !bytes.is_empty() {
                let datagram = bytes.split_to(size.min(bytes.len()));
                if !self.loss.as_mut().is_some_and(Loss::loses) {
                    client.engine.receive(datagram, self.server, now);
                }
            }
        }
        self.process(key, now);
    }

    fn process(&mut self, key: usize, now: Instant) {
        let Some(client) = self.all.get_mut(key).and_then(Option::as_mut) else { return };
        let was_changed = client.is_changed;
        self.bytes += client.process(now, |event| self.events.push((key, event)));
        if !was_changed {
            self.changed.push(key);
        }
    }

    /// Sends the packets of a connection, and sets its timer.
    fn flush(&mut self, key: usize, now: Instant) {
        let Some(client) = self.all.get_mut(key).and_then(Option::as_mut) else { return };
        client.is_changed = false;
        let segments_max = if self.loss.is_some() { 1 } else { SEGMENTS_MAX };
        loop {
            self.out.clear();
            self.out.reserve(MESSAGE_SIZE);
            let made = client.engine.connection.poll_transmit(now, segments_max, &mut self.out);
            let Some(transmit) = made else { break };
            if self.loss.as_mut().is_some_and(Loss::loses) {
                continue;
            }
            let message = OutgoingMessage {
                bytes: &self.out[..transmit.size],
                to: None,
                from: None,
                segment: transmit.segment_size.and_then(|size| u16::try_from(size).ok()),
                ecn: 0,
            };
            // A datagram that cannot be sent is lost.
            let _ = tw_sys::datagram::send(&client.socket, &[message], Joining::Separate);
        }
        let timer = client.engine.connection.poll_timeout();
        if timer != client.timer {
            if let Some(old) = client.timer {
                self.timers.remove(&(old, key));
            }
            self.timers.extend(timer.map(|timer| (timer, key)));
            client.timer = timer;
        }
    }

    /// Opens so many connections; all of them are connected when this returns.
    pub(crate) fn connect_all(&mut self, count: usize) -> Outcome<Vec<usize>> {
        /// Handshakes at the same time.
        const UNDER_WAY_MAX: usize = 32;
        let mut deadline = Instant::now() + tw_testkit::wait::TIMEOUT;
        let mut keys = Vec::with_capacity(count);
        let mut connected = 0;
        while connected < count {
            while keys.len() < count.min(connected + UNDER_WAY_MAX) {
                keys.push(self.connect()?);
            }
            for (_, event) in self.turn(deadline)? {
                match event {
                    Happened::Connected => {
                        connected += 1;
                        deadline = Instant::now() + tw_testkit::wait::TIMEOUT;
                    }
                    Happened::Answered(_) | Happened::Failed => return Err("a connection has failed".into()),
                }
            }
            if Instant::now() >= deadline {
                return Err(format!("only {connected} of {count} handshakes were completed").into());
            }
        }
        Ok(keys)
    }

    /// Lets time pass, and answers what the server sends meanwhile.
    pub(crate) fn rest(&mut self, span: Duration) -> Outcome {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.turn(until)?;
        }
        Ok(())
    }
}
